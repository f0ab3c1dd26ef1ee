"""The README.md of an exported model, as a hub shows it: what is known of it, and what its author must add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from pretrain import __version__
from pretrain.data.token_files.reading import TokenFile
from pretrain.errors import PretrainError
from pretrain.launch.run_directory import recipe_of
from pretrain.report.metrics import FILE, number, read_metrics, with_errors
from pretrain.stores.address import is_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pretrain.tools.convert.model_weights import ModelWeights

CARD = "README.md"
_HEADER = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- pretrain
# To fill in: the licence, by its name in the hub's list, without the "# " of the next line.
# license: apache-2.0
---
"""
_TO_FILL_IN = """\
> **To fill in before an upload**: the licence (in the header of this file), what the model is for and what it is not
> for, and where its data come from. Paths below are those of the machine that trained it."""
_UNKNOWN = "Recipe, data and losses are not known: the weights were exported from a checkpoint without its run."


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """What the directory of a run tells of one of its checkpoints."""

    name: str
    settings: dict[str, Any]  # content of recipe.yml
    records: Sequence[dict[str, Any]]  # of metrics.jsonl, up to the checkpoint

    def recipe(self) -> str:
        """Return the recipe as YAML, without `logging`: addresses of trackers may have passwords, and options keys."""
        shown = {name: keys for name, keys in self.settings.items() if name != "logging"}
        return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=120)

    def last(self, kind: str, **keys: object) -> dict[str, Any] | None:
        """Return the last record of a kind with these values."""
        return next(
            (
                each
                for each in reversed(self.records)
                if each.get("kind") == kind and all(each.get(key) == value for key, value in keys.items())
            ),
            None,
        )


def model_card(weights: ModelWeights, architecture: str, parameters: int, dtype: str, *, has_tokenizer: bool) -> bytes:
    """Return the card of a model; what a checkpoint without its run does not tell, the card does not say."""
    run = _run_of(weights)
    kind = architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    parts = [
        f"{_HEADER}\n# {kind}, {parameters:,} parameters",
        _TO_FILL_IN,
        "## Model",
        _table(("", ""), _model_rows(weights, architecture, parameters, dtype)),
        "## Training",
        *_training(weights, run),
        "## Use",
        _use(has_tokenizer=has_tokenizer),
        "`sha256sum -c SHA256SUMS` checks the files.",
        f"Written by pretrain {__version__}.",
    ]
    return ("\n\n".join(parts) + "\n").encode()


def _run_of(weights: ModelWeights) -> _Run | None:
    file = recipe_of(weights.path) if weights.format == "pretrain" else None
    if file is None:
        return None
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
        records = read_metrics(file.parent / FILE) if (file.parent / FILE).is_file() else []
    except (PretrainError, OSError, ValueError, yaml.YAMLError):
        return None
    upto = [each for each in records if weights.iteration is not None and each["iteration"] <= weights.iteration]
    return _Run(
        name=file.parent.resolve().name,
        settings=settings if isinstance(settings, dict) else {},
        records=upto,
    )


def _model_rows(weights: ModelWeights, architecture: str, parameters: int, dtype: str) -> list[tuple[str, str]]:
    model = weights.model
    return [
        ("architecture", architecture),
        ("parameters", f"{parameters:,}"),
        ("layers", f"{model.num_layers}"),
        ("hidden size", f"{model.hidden_size:,}"),
        ("attention heads", f"{model.num_attention_heads}, {model.num_query_groups} of keys and values"),
        ("vocabulary", f"{weights.tokens:,}"),
        ("longest text", f"{model.max_position_embeddings:,} tokens"),
        ("dtype", dtype),
    ]


def _training(weights: ModelWeights, run: _Run | None) -> Iterable[str]:
    seen, length = weights.consumed_samples, _sequence_length(run)
    told = [
        ("run", "not known" if run is None else run.name),
        ("iteration", "not known" if weights.iteration is None else f"{weights.iteration:,}"),
        ("sequences seen", "not known" if seen is None else f"{seen:,}"),
        ("tokens seen", f"{seen * length:,}, {length:,} a sequence" if seen and length else "not known"),
    ]
    yield _table(("", ""), told)
    if run is None:
        yield _UNKNOWN
        return
    train = run.last("train")
    yield _table(("data", "weight", "tokens"), _data_rows(run.settings.get("data") or {}))
    losses = [
        ("training", train),
        ("validation", run.last("eval", split="valid")),
        ("test", run.last("eval", split="test")),
    ]
    rows = [_loss_row(name, record) for name, record in losses if record is not None]
    yield (
        _table(("loss, nats per token", "after iteration", "loss", "perplexity"), rows)
        if rows
        else "Losses: not known."
    )
    if tasks := _task_rows(run):
        yield _table(("task", "few-shot", "metric", "value", "standard error"), tasks)
    yield f"The recipe, for pretrain {__version__}, without its section `logging`:"
    recipe = run.recipe()
    fence = "~~~~" if "```" in recipe else "```"
    yield f"{fence}yaml\n{recipe}{fence}"


def _sequence_length(run: _Run | None) -> int | None:
    """Return the recipe's sequence length, which weights do not tell."""
    found = None if run is None else (run.settings.get("model") or {}).get("seq_length")
    return found if isinstance(found, int) else None


def _data_rows(data: dict[str, Any]) -> list[tuple[str, str, str]]:
    parts = data.get("train_data_path") or data.get("blend") or [{"path": data.get("path"), "weight": 1}]
    return [(f"`{part.get('path')}`", f"{part.get('weight')}", _tokens(part.get("path"))) for part in parts]


def _tokens(path: object) -> str:
    if is_address(path):
        return "not known: the files are in an object store"
    try:
        return f"{TokenFile.open(str(path)).tokens.size:,}"
    except (PretrainError, OSError):
        return "not known: the files are not here"


def _loss_row(name: str, record: dict[str, Any]) -> tuple[str, str, str, str]:
    return (
        name,
        f"{record['iteration']:,}",
        number(record.get("lm_loss"), ".4f"),
        number(record["ppl"], ".4g") if "ppl" in record else "",
    )


def _task_rows(run: _Run) -> list[tuple[str, ...]]:
    last = {each["task"]: each for each in run.records if each.get("kind") == "task"}
    for task, record in last.items():
        # A later look at the first documents says less than an evaluation of all of them by the same weights.
        last[task] = run.last("task", task=task, iteration=record["iteration"], limit=None) or record
    return [
        (
            task if record.get("limit") is None else f"{task}, first {record['limit']:,}",
            f"{record.get('num_fewshot')}",
            name,
            number(value, ".4f"),
            "" if error is None else f"{error:.4f}",
        )
        for task, record in last.items()
        for name, value, error in with_errors(record.get("metrics", {}))
    ]


def _use(*, has_tokenizer: bool) -> str:
    lines = [
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer"
        if has_tokenizer
        else "from transformers import AutoModelForCausalLM",
        "",
        'folder = "."  # or the name of its repository',
        "model = AutoModelForCausalLM.from_pretrained(folder)",
    ]
    if has_tokenizer:
        lines += [
            "tokenizer = AutoTokenizer.from_pretrained(folder)",
            'tokens = tokenizer("Once upon a time", return_tensors="pt")',
            "print(tokenizer.decode(model.generate(**tokens, max_new_tokens=50)[0]))",
        ]
    note = [] if has_tokenizer else ["", "No tokenizer is here: the one of the training must be added."]
    return "\n".join([*lines, "```", *note])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
