"""The files that describe a run, and what rank 0 says of it at the start and at the end."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pretrain.data.token_files.entropy import unigram_entropy
from pretrain.observe.environment import describe_environment, write_environment
from pretrain.observe.flops import parameter_count
from pretrain.observe.metrics import FILE as METRICS
from pretrain.observe.report.page import write_report
from pretrain.plugins.table_text import render

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pretrain.data.tokenizers.tokenizer import Tokenizer
    from pretrain.plugins.manager import Plugins
    from pretrain.plugins.table import KernelTable
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.training.run_logger import Journal

RECIPE = "recipe.yml"
REPORT = "report.html"


def write(
    recipe: Recipe,
    plugins: Plugins,
    table: KernelTable,
    layout: Layout,
    run_dir: Path,
    *,
    devices: Sequence[str],
    started: float,
) -> None:
    """Write the resolved recipe and environment.json."""
    run_dir.mkdir(parents=True, exist_ok=True)
    temporary = run_dir / f".{RECIPE}.new"
    temporary.write_text(recipe.dump())
    temporary.replace(run_dir / RECIPE)
    environment = describe_environment(
        backend=plugins.backend,
        provider=plugins.provider,
        devices=devices,
        kernels=table.to_json(),
        layout=dataclasses.asdict(layout),
        started=started,
    )
    write_environment(run_dir, environment)


def introduce(
    journal: Journal,
    recipe: Recipe,
    table: KernelTable,
    layout: Layout,
    tokenizer: Tokenizer,
    run_dir: Path,
    remark: str,
) -> None:
    """Say what is trained, how it is laid out, and with which kernels."""
    parameters = parameter_count(recipe.model, recipe.padded_vocab_size(tokenizer.vocab_size))
    journal.note(f"run directory: {run_dir}")
    journal.note(render(table))
    journal.note(
        f"{parameters / 1e6:,.1f} M parameters, {recipe.precision.dtype}; {layout.world_size} ranks: "
        f"tensor {layout.tensor_model_parallel_size} x pipeline {layout.pipeline_model_parallel_size} x "
        f"data {layout.data_parallel_size}"
    )
    if recipe.data.path is not None:
        entropy = unigram_entropy(recipe.data.path, tokenizer.vocab_size)
        journal.note(f"unigram entropy of the corpus: {entropy:.3f} nats per token; a model that learns gets below it")
    for notice in (*recipe.notices, remark):
        if notice:
            journal.note(notice)


def conclude(journal: Journal, run_dir: Path, reason: str, iteration: int) -> None:
    """Write the report and say where everything is."""
    if (run_dir / METRICS).stat().st_size:  # a run that had nothing left to do has nothing to report
        write_report([run_dir], run_dir / REPORT)
    journal.note(f"left after iteration {iteration}: {reason}" if reason else f"done: {iteration} iterations")
    files = sorted(entry.name for entry in run_dir.iterdir() if not entry.name.startswith("."))
    journal.note(f"run directory: {run_dir} ({', '.join(files)})")
