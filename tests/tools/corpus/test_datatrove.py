"""datatrove's executors run the shards of a build and merge them, to the same bytes as one build."""

from __future__ import annotations

import json

import pytest
from datatrove.executor import LocalPipelineExecutor

from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.data.tokenizers.tokenizer import TokenizerFiles
from pretrain.errors import DataError
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.datatrove import BuildShard, MergeShards

BYTES = TokenizerFiles("bytes")
SHARDS = 3


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {number} " * (number % 7)}) + "\n" for number in range(200)))
    return path


def content(prefix):
    return [path(prefix).read_bytes() for path in (bin_path, idx_path)]


def executors(corpus, folder, **options):
    """Return one that builds and one that waits for it and merges; in this process, which shows as much as a pool."""
    build = LocalPipelineExecutor(
        [BuildShard([corpus], folder / "c", BYTES, append_eod=True, **options)],
        tasks=SHARDS,
        workers=1,
        logging_dir=str(folder / "logs" / "build"),
    )
    steps = [MergeShards(folder / "c", SHARDS)]
    return build, LocalPipelineExecutor(steps, workers=1, depends=build, logging_dir=str(folder / "logs" / "merge"))


def test_shards_and_merge_give_the_bytes_of_one_build(corpus, tmp_path):
    _, merge = executors(corpus, tmp_path)
    merge.run()
    build_tokens([corpus], tmp_path / "whole", BYTES, append_eod=True)
    assert content(tmp_path / "c") == content(tmp_path / "whole")


def test_documents_and_tokens_are_in_datatroves_statistics(corpus, tmp_path):
    build, _ = executors(corpus, tmp_path)
    (stats,) = build.run().stats
    assert stats.stats["documents"].total == 200
    assert stats.stats["tokens"].total == sum(
        len(json.loads(line)["text"]) + bool(json.loads(line)["text"]) for line in corpus.read_text().splitlines()
    )


def test_a_task_that_failed_is_run_again_and_the_others_are_not(corpus, tmp_path):
    lines = corpus.read_text().splitlines(keepends=True)
    corpus.write_text("".join([*lines, '{"text": 1}\n']))
    build, merge = executors(corpus, tmp_path)
    with pytest.raises(DataError, match=r"corpus\.jsonl:201: "):
        build.run()
    done = sorted(path.name for path in (tmp_path / "logs" / "build" / "completions").iterdir())
    assert done == ["00000", "00001"]
    build, merge = executors(corpus, tmp_path, skip_faults=True)
    merge.run()
    assert sorted(path.name for path in (tmp_path / "logs" / "build" / "completions").iterdir()) == [
        *done,
        "00002",
    ]
    build_tokens([corpus], tmp_path / "whole", BYTES, append_eod=True, skip_faults=True)
    assert content(tmp_path / "c") == content(tmp_path / "whole")


def test_a_missing_shard_is_an_error(tmp_path):
    with pytest.raises(DataError, match="c-00000-of-00002"):
        MergeShards(tmp_path / "c", 2).run()
