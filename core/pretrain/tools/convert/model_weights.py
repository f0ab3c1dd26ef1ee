"""What a format's module returns: weights of a whole model in our own form, and a summary for `inspect`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError

from pretrain.checkpoint.identity import is_padded
from pretrain.errors import CheckpointError
from pretrain.recipe.checks.effect import RULES
from pretrain.recipe.section import shown
from pretrain.recipe.sections.model import ModelSection
from pretrain.report.plain_text import some_of
from pretrain.tools.convert.lazy_tensor import constant, with_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from pretrain.tools.convert.lazy_tensor import LazyTensor

EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
EXPERT_BIAS = ".mlp.router.expert_bias"  # end of the name of a router's bias, which is fp32 in models of any dtype
MAIN = "fp32_param"
_BIAS = re.compile(r"decoder\.layers\.\d+\.(self_attention|mlp)\.linear_\w+\.bias")
LATEST_OF_DEEPSPEED = "latest"  # file of DeepSpeed and GPT-NeoX that names the newest folder
RELEASE = "release"  # content of Megatron-LM's LATEST, and folder, of weights that were published without an iteration
# keys that have an effect with use_rope_scaling alone
_OF_SCALING = {
    path.removeprefix("model.") for rule in RULES if "model.use_rope_scaling" in rule.decided_by for path in rule.keys
}
_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelWeights:
    """All weights of a model, whole and in our order of rows, and what else a checkpoint tells of its training."""

    path: Path
    format: str  # its format's name, as `pretrain checkpoint inspect` shows it
    model: ModelSection
    # by our names (`expected_shapes`), layers from 0 over the whole model; no output layer where it is tied to the
    # embedding; the vocabulary may be padded
    tensors: Mapping[str, LazyTensor]
    vocab_size: int | None = None  # tokens of the vocabulary without padding; None where the files do not tell
    iteration: int | None = None  # of the training; None where the files do not tell
    consumed_samples: int | None = None  # sequences trained on; None where the files do not tell
    # learning-rate schedule by megatron-core's names (max_lr, min_lr, lr_warmup_steps, lr_decay_steps in samples,
    # lr_decay_style, num_steps, ...), as far as the files tell it
    schedule: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: tuple[Path, ...] = ()
    fingerprint: str | None = None  # of the training's tokenizer; None where the files do not tell
    optimizer: OptimizerState | None = None  # where the files have its state whole

    @property
    def rows(self) -> int:
        """Rows of the vocabulary, padding included."""
        return self.tensors[EMBEDDING].shape[0]

    @property
    def tokens(self) -> int:
        """Tokens of the vocabulary; with padding where its size without it is not known."""
        return self.vocab_size or self.rows

    def fits(self, tokens: int) -> bool:
        """Say whether a tokenizer of so many tokens may be the model's."""
        told = self.vocab_size  # without padding, but for Hugging Face
        if told is not None and (told < self.rows or not self.format.startswith("Hugging Face")):
            return told == tokens
        return is_padded(tokens, self.rows)

    def with_vocabulary(self, rows: int, *, with_zeros: bool = False) -> ModelWeights:
        """Return the weights with so many rows of the vocabulary: padding is left out or added.

        This program pads `with_zeros`, since its loss leaves padding out. For others the last token's row is repeated,
        as tools/checkpoint/saver_base.py of Megatron-LM does: their losses sum over padding, where a row of zeros could
        be far more probable than any token.
        """
        tokens = min(self.tokens, self.rows)
        changed = {
            name: with_rows(with_rows(self.tensors[name], tokens), rows, repeats_last=not with_zeros)
            for name in (EMBEDDING, OUTPUT)
            if name in self.tensors
        }
        return replace(self, tensors={**self.tensors, **changed})

    def with_zero_biases(self) -> ModelWeights:
        """Return the weights with biases of 0 for linear layers that have none; the model computes the same."""
        model = self.model.model_copy(update={"add_bias_linear": True, "add_qkv_bias": False})
        tensors = {
            name: self.tensors.get(name) or constant(shape, self.tensors[name.replace(".bias", ".weight")].dtype, 0.0)
            for name, shape in expected_shapes(model, self.rows).items()
        }
        return replace(self, model=model, tensors=tensors)

    def padded_for(self, ranks: int, *, with_zeros: bool = False) -> ModelWeights:
        """Return the weights with the padding that so many tensor-parallel ranks need; see `with_vocabulary`."""
        return self.with_vocabulary(self.model.padded_vocab_size(self.tokens, ranks), with_zeros=with_zeros)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerState:
    """State of Adam."""

    # fp32 or bf16: `exp_avg.WEIGHT`, `exp_avg_sq.WEIGHT`; fp32, where weights have 16 bits: `fp32_param.WEIGHT`
    tensors: Mapping[str, LazyTensor]
    step: int
    loss_scaler: Mapping[str, float] | None  # scale, growth_tracker and hysteresis_tracker, where it is dynamic


def expected_shapes(model: ModelSection, rows: int) -> dict[str, tuple[int, ...]]:
    """Return our name and the whole shape of every weight of a model."""
    hidden, heads, groups = model.hidden_size, model.num_attention_heads, model.num_query_groups
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (rows, hidden)}
    if model.position_embedding_type == "learned_absolute":
        shapes["embedding.position_embeddings.weight"] = (model.max_position_embeddings, hidden)
    if model.embedding_layernorm:
        shapes |= _norm("embedding_layernorm", model)
    for number, has_experts in enumerate(model.layers_with_experts):
        layer = f"decoder.layers.{number}"
        shapes |= _norm(f"{layer}.input_layernorm", model)
        qkv_bias = model.add_bias_linear or model.add_qkv_bias
        shapes |= _linear(
            f"{layer}.self_attention.linear_qkv", (heads + 2 * groups) * model.head_size, hidden, qkv_bias
        )
        if model.qk_layernorm:
            shapes |= _norm(f"{layer}.self_attention.q_layernorm", model, model.head_size)
            shapes |= _norm(f"{layer}.self_attention.k_layernorm", model, model.head_size)
        bias = model.add_bias_linear
        shapes |= _linear(f"{layer}.self_attention.linear_proj", hidden, heads * model.head_size, bias)
        shapes |= _norm(f"{layer}.pre_mlp_layernorm", model)
        shapes |= _experts(layer, model) if has_experts else _mlp(f"{layer}.mlp", model, model.ffn_hidden_size)
    shapes |= _norm("decoder.final_layernorm", model)
    if model.untie_embeddings_and_output_weights:
        shapes[OUTPUT] = (rows, hidden)
    return shapes


def require_expected(weights: ModelWeights) -> ModelWeights:
    """Return the weights if they are all of the model's, and no others."""
    if weights.model.num_layers > len(weights.tensors):  # before anything of that size is made
        what = f"only {len(weights.tensors)} weights for {weights.model.num_layers} layers"
        msg = f"{weights.path} has {what}.\nCopy it again."
        raise CheckpointError(msg)
    expected = expected_shapes(weights.model, weights.rows if EMBEDDING in weights.tensors else 0)
    weights = _without_zero_biases(weights, expected)
    found = {name: tensor.shape for name, tensor in weights.tensors.items()}
    if wrong := mismatches(expected, found):
        msg = f"{weights.path} ({weights.format}) does not hold the model that it describes: {some_of(wrong)}.\n"
        msg += "Give settings that the files do not contain by --set model.KEY=VALUE."
        raise CheckpointError(msg)
    return weights


def _without_zero_biases(weights: ModelWeights, expected: Collection[str]) -> ModelWeights:
    """Leave out biases that the model does not have, as `with_zero_biases` fills them in, if all are 0."""
    more = {name for name in weights.tensors if _BIAS.fullmatch(name) and name not in expected}
    if not more or any(bool(weights.tensors[name].whole().any()) for name in more):
        return weights
    return replace(weights, tensors={name: each for name, each in weights.tensors.items() if name not in more})


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
    """Return the model that a checkpoint's settings describe."""
    settings = {name: value for name, value in {**told, **given}.items() if name in ModelSection.model_fields}
    if not settings.get("use_rope_scaling"):  # what a file tells of it has no effect, and recipes cannot have it
        settings = {name: value for name, value in settings.items() if name in given or name not in _OF_SCALING}
    settings.setdefault("seq_length", settings.get("max_position_embeddings", 2048))
    settings.setdefault("max_position_embeddings", settings["seq_length"])
    try:
        return ModelSection.model_validate(settings | {"hidden_dropout": 0.0, "attention_dropout": 0.0})
    except ValidationError as error:
        missing = [str(each["loc"][0]) for each in error.errors() if each["type"] == "missing"]
        found = {str(each["loc"][0]): each["input"] for each in error.errors() if each["type"] != "missing"}
        wrong = [name for name in found if name in settings]  # others follow from these
        invalid = ", ".join(f"{name} {shown(found[name])}" for name in wrong)
        what = f"does not contain {', '.join(missing)}" if missing else f"has an invalid {invalid}"
        msg = f"{path} {what}.\nGive it as --set model.{(missing or wrong)[0]}=VALUE."
        raise CheckpointError(msg) from error


def _mlp(name: str, model: ModelSection, width: int) -> dict[str, tuple[int, ...]]:
    hidden, rows = model.hidden_size, width * (2 if model.activation == "swiglu" else 1)
    up = _linear(f"{name}.linear_fc1", rows, hidden, model.add_bias_linear)
    return up | _linear(f"{name}.linear_fc2", hidden, width, model.add_bias_linear)


def _experts(layer: str, model: ModelSection) -> dict[str, tuple[int, ...]]:
    """Return the router, the experts, each weight's as one of three dimensions, and the shared experts as one MLP."""
    experts, shared = model.num_experts or 0, model.moe_shared_expert_intermediate_size
    shapes: dict[str, tuple[int, ...]] = {f"{layer}.mlp.router.weight": (experts, model.hidden_size)}
    if model.moe_router_enable_expert_bias:
        shapes[f"{layer}{EXPERT_BIAS}"] = (experts,)
    each = _mlp(f"{layer}.mlp.experts", model, model.moe_ffn_hidden_size)
    shapes |= {name: (experts, *shape) for name, shape in each.items()}
    return shapes | (_mlp(f"{layer}.mlp.shared_experts", model, shared) if shared else {})


def _norm(name: str, model: ModelSection, width: int | None = None) -> dict[str, tuple[int, ...]]:
    shape = (model.hidden_size if width is None else width,)
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": shape}
    return shapes if model.normalization == "RMSNorm" else shapes | {f"{name}.bias": shape}


def _linear(name: str, rows: int, columns: int, has_bias: bool) -> dict[str, tuple[int, ...]]:
    weight: dict[str, tuple[int, ...]] = {f"{name}.weight": (rows, columns)}
    return weight | {f"{name}.bias": (rows,)} if has_bias else weight


@dataclass(frozen=True, kw_only=True, slots=True)
class FileLayout:
    """Number of parts into which files divide a model, by kind of parallelism; 1 where it is stored whole."""

    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int = 1  # chunks of layers on each stage
    expert: int = 1
    data: int = 1  # data-parallel ranks among which ZeRO divides


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSummary:
    """A checkpoint in a few words and numbers."""

    path: Path
    format: str
    version: str | None = None  # of the format, where it has one
    iteration: int | None = None
    model: dict[str, Any] = field(default_factory=dict)  # settings that the files tell, and `padded_vocab_size`
    # of the whole model, with the padding of the vocabulary; None where weights have names that are not known
    parameters: int | None
    parts: FileLayout = FileLayout()
    dtypes: tuple[str, ...]  # of the weights, as a recipe calls them
    contents: tuple[str, ...]  # some of "weights", "optimizer", "rng", "schedule"
    files: int = 0  # the registry counts them
    size: int = 0  # of all files in bytes


def contents(*, optimizer: bool, rng: bool, schedule: bool) -> tuple[str, ...]:
    """Return a summary's contents: the weights, and what else is there."""
    others = {"optimizer": optimizer, "rng": rng, "schedule": schedule}
    return ("weights", *(name for name, is_there in others.items() if is_there))


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name in a recipe, or torch's where a recipe has none."""
    return _DTYPES.get(dtype, str(dtype).removeprefix("torch."))


def dtype_names(dtypes: Iterable[torch.dtype]) -> tuple[str, ...]:
    """Return the different dtypes' names, sorted."""
    return tuple(sorted(set(map(dtype_name, dtypes))))
