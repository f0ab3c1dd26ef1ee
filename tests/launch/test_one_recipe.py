"""All ranks train one recipe, on the same data, with the same software: what may differ, and what is refused."""

from __future__ import annotations

import json

import pytest

from plugins.fake_site import site
from pretrain.launch import one_recipe
from pretrain.launch.one_recipe import OF_HOST, differing, stated
from pretrain.recipe import make_recipe
from pretrain.recipe.recipe import keys_of_recipe
from recipe.smallest import SMALLEST
from tools.doctor.written_tokens import write_tokens

__all__ = ["site"]


@pytest.fixture
def tokens(tmp_path):
    return write_tokens(tmp_path / "corpus", range(200))


def found_in(statements):
    return differing(dict(enumerate(statements)))


def told(tokens, *overrides, host="a", backend="cpu", **reads):
    """What a rank tells the others, as it arrives there."""
    recipe = make_recipe(SMALLEST, [f"data.path={tokens}", *overrides])
    return json.loads(json.dumps(stated(recipe, backend, **{"reads_files": True} | reads))) | {"host": host}


def test_equal_ranks_differ_in_nothing_and_one_of_a_node_reads_the_files(tokens):
    of_nodes = [told(tokens, host=host, reads_files=reads) for host in "ab" for reads in (True, False)]
    assert found_in(of_nodes) == ""
    assert of_nodes[1]["files"] == {}


def test_another_learning_rate_is_named_with_host_key_and_both_values(tokens):
    first, other = told(tokens), told(tokens, "optimizer.lr=0.5", host="b")
    assert found_in([first, first, other, other]).splitlines()[1:] == [
        "  optimizer.lr: 0.5 on b (ranks 2-3), 0.001 on a (rank 0)",
        "Give every node the same recipe and --set options, files and versions, and start again.",
    ]


@pytest.mark.parametrize(
    "override",
    [
        "model.hidden_size=128",
        "train.seed=5",
        "parallel.distributed_timeout_minutes=3",
        "checkpoint.save=elsewhere",
        "train.loss_spike.threshold=3.0",
        "logging.log_interval=7",
    ],
)
def test_every_key_counts_but_those_of_a_host(tokens, override):
    assert f"  {override.partition('=')[0]}: " in found_in([told(tokens), told(tokens, override)])


def test_a_host_may_have_its_inputs_elsewhere_and_their_content_counts(tokens, tmp_path):
    (tmp_path / "mounted").mkdir()
    copy = write_tokens(tmp_path / "mounted" / "copy", range(200))
    assert found_in([told(tokens), told(copy, "data.cache_path=/scratch")]) == ""
    with copy.with_name("copy.bin").open("r+b") as file:
        file.write(b"\x07")
    assert "  token files 1 of 1: content " in found_in([told(tokens), told(copy)])


def test_parts_of_a_blend_are_compared_by_weight_and_content(tokens, tmp_path):
    def blend(*parts):
        listed = ", ".join(f"{{weight: {weight}, path: {path}}}" for weight, path in parts)
        return told(tokens, "data.path=null", f"data.blend=[{listed}]")

    other = write_tokens(tmp_path / "other", range(50))
    whole = blend((1, tokens), (2, other))
    assert found_in([whole, whole]) == ""
    assert "  data.blend: " in found_in([whole, blend((1, tokens), (3, other))])
    assert "  token files 2 of 2: content " in found_in([whole, blend((1, tokens), (2, tokens))])


def test_files_of_each_split_are_compared(tokens, tmp_path):
    """Two files are named in each order; only their places differ."""
    other = write_tokens(tmp_path / "other", range(50))

    def own(*paths):
        keys = zip(("train_data_path", "valid_data_path", "test_data_path"), paths, strict=True)
        return told(tokens, "data.path=null", *(f"data.{key}={path}" for key, path in keys))

    assert found_in([own(tokens, other, tokens)] * 2) == ""
    assert "  token files 3 of 3: content " in found_in([own(tokens, other, tokens), own(tokens, other, other)])


def test_a_file_that_one_host_lacks_is_a_difference(tokens, tmp_path):
    found = found_in([told(tokens), told(tmp_path / "absent", host="b")])
    assert f"  token files 1 of 1: token file {tmp_path / 'absent'}.idx is missing. on b (rank 1), content " in found


def test_token_files_that_are_not_needed_may_be_absent(tokens, tmp_path):
    texts = [told(path, reads_data=False) for path in (tokens, tmp_path / "absent")]
    assert found_in(texts) == ""
    assert "tokenizer" in texts[0]["files"]


def test_a_tokenizer_that_differs_is_named(tokens, tmp_path):
    files = {name: tmp_path / f"{name}.json" for name in "ab"}
    for name, path in files.items():
        path.write_text(f'{{"{name}": 0}}')
    a, b = (told(tokens, "tokenizer.type=huggingface", f"tokenizer.file={path}") for path in files.values())
    assert "  tokenizer: content " in found_in([a, b])


def test_versions_of_the_software_in_use_are_compared(tokens, monkeypatch):
    first = told(tokens)
    monkeypatch.setattr(one_recipe, "version", lambda name: {"torch": "2.9.0"}.get(name, "0.16.1"))
    (line,) = found_in([first, told(tokens, host="b")]).splitlines()[1:-1]
    assert line.startswith("  torch: 2.9.0 on b (rank 1), ")


def test_a_plugin_that_one_host_lacks_is_named(tokens, site):
    without = told(tokens)
    site.plugin("fast", "")
    having = told(tokens, host="b")
    assert "  plugin fast: kernels-fast 2.0 on b (rank 1), absent on a (rank 0)" in found_in([without, having])
    assert "  plugin fast: absent on a (rank 1), kernels-fast 2.0 on b (rank 0)" in found_in([having, without])


def test_keys_that_may_differ_are_keys_of_a_recipe():
    assert set(keys_of_recipe()) >= OF_HOST


def test_many_differences_are_counted(tokens):
    hosts = [told(tokens, f"train.seed={rank}", host=str(rank)) for rank in range(20)]
    assert "... and 11 more" in found_in(hosts)


def test_ranks_that_are_silent_neither_differ_nor_shift_the_numbers_of_others(tokens):
    first, other = told(tokens, host="a"), told(tokens, "optimizer.lr=0.5", host="b")
    without_files = first | {"files": {}}
    assert differing({1: without_files, 2: first}) == ""
    assert "on b (rank 3), " in differing({1: without_files, 3: other})
