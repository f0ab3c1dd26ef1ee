"""Weights of a whole model in our own form, which every format is read into and written from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pretrain.checkpoint.identity import is_padded
from pretrain.errors import CheckpointError
from pretrain.recipe.section import shown
from pretrain.recipe.sections.model import ModelSection
from pretrain.tools.convert.lazy_tensor import with_last_row_repeated, with_rows
from pretrain.tools.convert.weight_names import some_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pretrain.tools.convert.lazy_tensor import LazyTensor


EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelWeights:
    """All weights of a model, whole and in our order of rows, and what else a checkpoint tells of its training.

    Attributes:
        path: the folder they are in.
        format: its format's name, as `pretrain checkpoint inspect` shows it.
        model: the model.
        tensors: by our names (`expected_shapes`); layers are counted from 0 over the whole model. The output layer is
            missing where it is tied to the embedding. The vocabulary may be padded.
        vocab_size: tokens of the vocabulary without padding; None where the files do not tell.
        iteration: of the training; None where the files do not tell.
        consumed_samples: sequences trained on; None where the files do not tell.
        schedule: learning-rate schedule by megatron-core's names (max_lr, min_lr, lr_warmup_steps, lr_decay_steps in
            samples, lr_decay_style, num_steps, ...), as far as the files tell it.
        tokenizer: files of its tokenizer.
        optimizer: its state, where the files have it whole.
    """

    path: Path
    format: str
    model: ModelSection
    tensors: Mapping[str, LazyTensor]
    vocab_size: int | None = None
    iteration: int | None = None
    consumed_samples: int | None = None
    schedule: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: tuple[Path, ...] = ()
    optimizer: OptimizerState | None = None

    @property
    def rows(self) -> int:
        """Rows of the vocabulary, padding included."""
        return self.tensors[EMBEDDING].shape[0]

    @property
    def tokens(self) -> int:
        """Tokens of the vocabulary; with padding where its size without it is not known."""
        return self.vocab_size or self.rows

    def fits(self, tokens: int) -> bool:
        """Say whether a tokenizer of so many tokens may be the model's.

        Where a format tells the size without padding it must be that one; Hugging Face's may include padding.
        """
        told = self.vocab_size
        if told is not None and (told < self.rows or not self.format.startswith("Hugging Face")):
            return told == tokens
        return is_padded(tokens, self.rows)

    def with_vocabulary(self, rows: int, *, with_zeros: bool = False) -> ModelWeights:
        """Return the weights with so many rows of the vocabulary: padding is left out or added.

        Args:
            rows: wanted.
            with_zeros: pad with zeros, as this program does, whose loss leaves padding out. Otherwise the last token's
                row is repeated, as tools/checkpoint/saver_base.py of Megatron-LM does: the losses of other programs
                sum over padding, where a row of zeros could be far more probable than any token.
        """
        padded = with_rows if with_zeros else with_last_row_repeated
        tokens = min(self.tokens, self.rows)
        changed = {
            name: padded(with_rows(self.tensors[name], tokens), rows)
            for name in (EMBEDDING, OUTPUT)
            if name in self.tensors
        }
        return replace(self, tensors={**self.tensors, **changed})

    def padded_for(self, ranks: int, *, with_zeros: bool = False) -> ModelWeights:
        """Return the weights with the padding that so many tensor-parallel ranks need; see `with_vocabulary`."""
        return self.with_vocabulary(self.model.padded_vocab_size(self.tokens, ranks), with_zeros=with_zeros)


def expected_shapes(model: ModelSection, rows: int) -> dict[str, tuple[int, ...]]:
    """Return our name and the whole shape of every weight of a model.

    Args:
        model: the model.
        rows: of the vocabulary, padding included.
    """
    hidden, heads, groups = model.hidden_size, model.num_attention_heads, model.num_query_groups
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (rows, hidden)}
    if model.position_embedding_type == "learned_absolute":
        shapes["embedding.position_embeddings.weight"] = (model.max_position_embeddings, hidden)
    if model.embedding_layernorm:
        shapes |= _norm("embedding_layernorm", model)
    width = model.ffn_hidden_size
    for number in range(model.num_layers):
        layer = f"decoder.layers.{number}"
        shapes |= _norm(f"{layer}.input_layernorm", model)
        qkv_bias = model.add_bias_linear or model.add_qkv_bias
        shapes |= _linear(
            f"{layer}.self_attention.linear_qkv", (heads + 2 * groups) * model.head_size, hidden, qkv_bias
        )
        bias = model.add_bias_linear
        shapes |= _linear(f"{layer}.self_attention.linear_proj", hidden, heads * model.head_size, bias)
        shapes |= _norm(f"{layer}.pre_mlp_layernorm", model)
        shapes |= _linear(f"{layer}.mlp.linear_fc1", width * (2 if model.activation == "swiglu" else 1), hidden, bias)
        shapes |= _linear(f"{layer}.mlp.linear_fc2", hidden, width, bias)
    shapes |= _norm("decoder.final_layernorm", model)
    if model.untie_embeddings_and_output_weights:
        shapes[OUTPUT] = (rows, hidden)
    return shapes


def require_expected(weights: ModelWeights) -> ModelWeights:
    """Return the weights if they are all of the model's, and no others.

    Raises:
        CheckpointError: some are missing, too many, or of another shape; the first are named.
    """
    if weights.model.num_layers > len(weights.tensors):  # before anything of that size is made
        what = f"{len(weights.tensors)} weights for {weights.model.num_layers} layers"
        msg = f"{weights.path} has {what}.\nCopy it again."
        raise CheckpointError(msg)
    embedding = weights.tensors.get(EMBEDDING)
    expected = expected_shapes(weights.model, embedding.shape[0] if embedding is not None else 0)
    found = {name: tensor.shape for name, tensor in weights.tensors.items()}
    if wrong := mismatches(expected, found):
        msg = (
            f"{weights.path} ({weights.format}) does not hold the model that it describes: {some_of(wrong)}.\n"
            "Settings that the files do not tell can be given by --set model.KEY=VALUE."
        )
        raise CheckpointError(msg)
    return weights


def mismatches(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return a text for each weight that is missing, too many, or of another shape."""
    return [
        *(f"no {name} {list(expected[name])}" for name in expected if name not in found),
        *(f"unexpected {name}" for name in found if name not in expected),
        *(
            f"{name} {list(found[name])} (expected {list(shape)})"
            for name, shape in expected.items()
            if name in found and found[name] != shape
        ),
    ]


def model_section(path: Path, told: Mapping[str, Any], given: Mapping[str, Any]) -> ModelSection:
    """Return the model that a checkpoint's settings describe.

    Args:
        path: the checkpoint, for errors.
        told: settings that the files tell; others of the recipe's section `model` keep their defaults.
        given: settings that the user adds or corrects.

    Raises:
        CheckpointError: a setting that is needed is not known, or has no valid value.
    """
    settings = {name: value for name, value in {**told, **given}.items() if name in ModelSection.model_fields}
    settings.setdefault("seq_length", settings.get("max_position_embeddings", 2048))
    settings.setdefault("max_position_embeddings", settings["seq_length"])
    try:
        return ModelSection.model_validate(settings | {"hidden_dropout": 0.0, "attention_dropout": 0.0})
    except ValidationError as error:
        missing = [str(each["loc"][0]) for each in error.errors() if each["type"] == "missing"]
        wrong = {name: value for name, value in _invalid(error) if name in settings}  # others follow from these
        invalid = ", ".join(f"{name} {shown(value)}" for name, value in wrong.items())
        what = f"does not tell {', '.join(missing)}" if missing else f"has no valid {invalid}"
        msg = f"{path} {what}.\nGive it as --set model.{(missing or list(wrong))[0]}=VALUE."
        raise CheckpointError(msg) from error


def _invalid(error: ValidationError) -> Iterator[tuple[str, Any]]:
    for each in error.errors():
        if each["type"] != "missing":
            yield str(each["loc"][0]), each["input"]


def _norm(name: str, model: ModelSection) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (model.hidden_size,)}
    return shapes if model.normalization == "RMSNorm" else shapes | {f"{name}.bias": (model.hidden_size,)}


def _linear(name: str, rows: int, columns: int, has_bias: bool) -> dict[str, tuple[int, ...]]:
    weight: dict[str, tuple[int, ...]] = {f"{name}.weight": (rows, columns)}
    return weight | {f"{name}.bias": (rows,)} if has_bias else weight


MAIN = "fp32_param"


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerState:
    """State of Adam.

    Attributes:
        tensors: `exp_avg.WEIGHT`, `exp_avg_sq.WEIGHT` and, where weights have 16 bits, `fp32_param.WEIGHT`; in fp32
            and by our names.
        step: optimizer steps taken.
        loss_scaler: scale, growth_tracker and hysteresis_tracker of megatron-core's dynamic loss scale; None without.
    """

    tensors: Mapping[str, LazyTensor]
    step: int
    loss_scaler: Mapping[str, float] | None
