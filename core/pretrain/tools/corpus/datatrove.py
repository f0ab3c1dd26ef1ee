"""Build on a cluster through datatrove (pretrain[datatrove]): executors run tasks on Slurm, Ray or this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from datatrove.pipeline.base import PipelineStep

from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.inputs import Shard
from pretrain.tools.corpus.merging import merge_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.data.tokenizers.tokenizer import TokenizerFiles
    from pretrain.tools.corpus.build import Built


class BuildShard(PipelineStep):  # type: ignore[misc]  # datatrove has no types
    """Task i of n builds shard i of n, as `pretrain data build --shard i/n` does, and continues an interrupted one.

    It reads the corpus itself, so it is the first and only step of a pipeline; docs/data.md has an example.
    """

    name = "shard"
    type = "pretrain data build"

    def __init__(
        self, inputs: Sequence[str | Path], prefix: str | Path, tokenizer: TokenizerFiles, **options: Any
    ) -> None:
        super().__init__()
        self.inputs, self.prefix = [Path(given) for given in inputs], Path(prefix)
        self.tokenizer, self.options = tokenizer, options

    def run(self, data: object = None, rank: int = 0, world_size: int = 1) -> None:  # noqa: ARG002  datatrove's names
        """Build the shard of this task."""
        shard = Shard(rank, world_size)
        prefix = _named(self.prefix, shard)
        _count(self, build_tokens(self.inputs, prefix, self.tokenizer, shard=shard, **self.options))


class MergeShards(PipelineStep):  # type: ignore[misc]  # datatrove has no types
    """Join the shards that `count` tasks have built, as `pretrain data merge` does. A pipeline of one task."""

    name = "shards"
    type = "pretrain data merge"

    def __init__(self, prefix: str | Path, count: int, *, force: bool = False) -> None:
        super().__init__()
        self.prefix, self.count, self.force = Path(prefix), count, force

    def run(self, data: object = None, rank: int = 0, world_size: int = 1) -> None:  # noqa: ARG002  datatrove's names
        """Merge, in the first task."""
        if rank == 0:
            shards = [_named(self.prefix, Shard(number, self.count)) for number in range(self.count)]
            _count(self, merge_tokens(shards, self.prefix, force=self.force))


def _named(prefix: Path, shard: Shard) -> Path:
    return prefix.with_name(prefix.name + shard.suffix)


def _count(step: PipelineStep, built: Built) -> None:
    """Add to datatrove's statistics, which are summed over tasks."""
    step.stat_update("documents", value=built.documents, unit="task")
    step.stat_update("tokens", value=built.tokens, unit="task")
    step.stat_update("left out", value=built.counts.faults + built.counts.short, unit="task")
