"""Kernel requests of the core: one frozen dataclass per operation.

Every request can be written as JSON, is equal on all ranks of a run, and holds all that a plugin may depend on.
Sizes are those of one rank: `heads` is the number of attention heads divided by the tensor-parallel size.
Shapes use s: sequence, b: micro batch, n: heads of this rank, g: key/value heads of this rank, d: head size,
h: hidden size, t: tensor-parallel size.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

import torch


class Mask(StrEnum):
    """Keys that a query must not attend to. No kernel may ignore a mask that it was given.

    NONE: every query sees every key; the mask argument is None.
    CAUSAL: query i sees keys up to i + (keys - queries); the mask argument is None.
    DOCUMENTS: causal within each document of a sample; the mask argument is `signatures.Documents`. Of attention alone.
    KEY_PADDING: bool [b, 1, 1, keys], True = masked.
    ARBITRARY: bool, broadcastable to [b, n, queries, keys], True = masked; it holds the causal part, if any.
    A query that sees no key at all gets zeros, forward and backward.
    """

    NONE = "none"
    CAUSAL = "causal"
    KEY_PADDING = "key_padding"
    ARBITRARY = "arbitrary"
    DOCUMENTS = "documents"

    @property
    def since(self) -> tuple[int, int]:
        """The version of the contract that added it."""
        return (1, 4) if self is Mask.DOCUMENTS else (1, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Fields of all requests."""

    operation: ClassVar[str]
    device_type: str
    """torch's name of the device ("cpu", "cuda", "npu")."""
    dtype: torch.dtype
    """Of the activations that go in and come out."""
    deterministic: bool = False
    """The same input must give the same bits on every call."""
    device_name: str = ""
    """What `Backend.device_name` says; empty where it does not matter. A plugin may depend on it, but on nothing else
    of the device, so that it can answer for a device that is not installed."""
    role: str = field(default="", metadata={"since": (1, 3)})
    """A use of the operation whose kernel is chosen apart; "" for all others. "head": the norm of each head's queries
    and keys. "output", "router": the linear of the output layer, and the one that gives the router its logits, in fp32.
    "expert", "shared": the activation of the routed experts and of the shared ones."""

    @property
    def key(self) -> str:
        """The operation, with its role after an "@" where there is one: "norm", "norm@head"."""
        return f"{self.operation}@{self.role}" if self.role else self.operation

    def to_json(self) -> dict[str, object]:
        """Return the request as plain JSON values; dtypes as "float32"."""
        plain: dict[str, object] = {"operation": self.operation}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            plain[each.name] = str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value
        return plain


@dataclass(frozen=True, kw_only=True, slots=True)
class SoftmaxRequest(Request):
    """Scale, mask and softmax over the last dimension: `SoftmaxFn`."""

    operation: ClassVar[str] = "softmax"
    heads: int
    """n, heads of this rank."""
    queries: int
    """Number of rows of one head."""
    keys: int
    """Length of one row."""
    mask: Mask = Mask.CAUSAL
    scale: float = 1.0
    """The scores are multiplied by it before the mask."""
    in_fp32: bool = True
    """fp16 and bf16 scores are scaled and exponentiated in fp32 (fp32 and fp64 always are in their own type)."""

    def __post_init__(self) -> None:
        """Refuse documents, which have no scores of one size."""
        if self.mask is Mask.DOCUMENTS:
            msg = f"a softmax with mask {self.mask}; documents are of attention alone"
            raise ValueError(msg)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionRequest(Request):
    """Dropout(Softmax(Mask(scale * Q K^T))) V: `AttentionFn`."""

    operation: ClassVar[str] = "attention"
    heads: int
    """n, query heads of this rank."""
    query_groups: int
    """g, key/value heads of this rank; n is a multiple of g."""
    head_size: int
    """d, size of a head."""
    seq_length: int
    """s, queries, and keys where `keys` says nothing else."""
    micro_batch_size: int
    """b of a training step; a prompt is continued with b = 1."""
    mask: Mask = Mask.CAUSAL
    dropout: float = 0.0
    """Probability with which an attention weight is dropped while training."""
    scale: float
    """Usually d**-0.5, where d is the size of a head."""
    score_divisor: float = 1.0
    """A kernel that stores scores in fp16 or bf16 divides them by it first, and multiplies by it in fp32 inside the
    softmax (`SoftmaxRequest.scale` is set to it); one that keeps scores in fp32 may ignore it."""
    softmax_in_fp32: bool = True
    """As `SoftmaxRequest.in_fp32`; a fused kernel that accumulates in fp32 fulfils it."""
    block_size: int = 512
    """Rows of one block of the "triangle" kind."""
    window: int | None = field(default=None, metadata={"since": (1, 3)})
    """Keys that a query sees at most, its own included; None: all. Only with `Mask.CAUSAL` and `Mask.DOCUMENTS`: query
    i then sees keys from i + (keys - queries) - window + 1 to i + (keys - queries)."""
    keys: int = field(default=0, metadata={"since": (1, 4)})
    """The most keys of a call, with `Mask.CAUSAL` and `Mask.DOCUMENTS`; 0: as many as queries. Else every call has s
    queries and from s to so many keys: a piece of a sequence under context parallelism, and all that is before it."""

    def __post_init__(self) -> None:
        """Refuse what no kernel would look at: any other mask holds the window, and the place of the queries."""
        is_causal, causal = self.mask in (Mask.CAUSAL, Mask.DOCUMENTS), f"{Mask.CAUSAL} or {Mask.DOCUMENTS}"
        if self.window is not None and (not is_causal or self.window < 1):
            msg = f"window {self.window} with mask {self.mask}; a window is at least 1, and needs mask {causal}"
            raise ValueError(msg)
        if self.keys and (not is_causal or self.keys < self.seq_length):
            needed = f"needs at least as many keys, and mask {causal}"
            msg = f"{self.keys} keys for {self.seq_length} queries with mask {self.mask}; {needed}"
            raise ValueError(msg)

    @property
    def most_keys(self) -> int:
        """The most keys of a call."""
        return self.keys or self.seq_length

    def softmax(self) -> SoftmaxRequest:
        """Return the request for the softmax of stored scores: it undoes the score divisor, its mask has the window.

        It has the sizes of the largest call, without documents: a kernel that keeps these apart calls it for none.
        """
        return SoftmaxRequest(
            device_type=self.device_type,
            dtype=self.dtype,
            deterministic=self.deterministic,
            device_name=self.device_name,
            heads=self.heads,
            queries=self.seq_length,
            keys=self.most_keys,
            mask=(Mask.CAUSAL if self.mask is Mask.DOCUMENTS else self.mask) if self.window is None else Mask.ARBITRARY,
            scale=self.score_divisor,
            in_fp32=self.softmax_in_fp32,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NormRequest(Request):
    """Layer norm or RMS norm over the last dimension: `NormFn`."""

    operation: ClassVar[str] = "norm"
    kind: str
    """"LayerNorm" or "RMSNorm"."""
    hidden_size: int
    """h, the normalized dimension."""
    epsilon: float
    """Added to the variance (LayerNorm) or mean square (RMSNorm)."""
    weight_dtype: torch.dtype
    """Of weight and bias."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RotaryRequest(Request):
    """Rotary position embedding of the first `rotary_size` of `head_size` dimensions: `RotaryFn`.

    It is called for queries and for keys; with grouped-query attention keys have fewer heads than `heads`.

    Half-split rotation as in GPT-NeoX: dimension i is rotated with i + rotary_size / 2.
    """

    operation: ClassVar[str] = "rotary"
    heads: int
    """n."""
    head_size: int
    """d."""
    rotary_size: int
    """Even, at most d; the other dimensions pass through."""
    seq_length: int
    """s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationRequest(Request):
    """Bias and activation of the MLP: `ActivationFn`."""

    operation: ClassVar[str] = "activation"
    kind: str
    """"gelu" (exact, erf), "gelu_tanh" or "swiglu" (silu(first half) * second half)."""
    features: int
    """Size of the last dimension of the output. With the role "expert" x is [rows, ...], of which there may be none."""
    has_bias: bool = True
    """Whether a bias is added first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BiasDropoutAddRequest(Request):
    """residual + dropout(x + bias): `BiasDropoutAddFn`."""

    operation: ClassVar[str] = "bias_dropout_add"
    hidden_size: int
    """h."""
    dropout: float = 0.0
    """Probability of the dropout."""
    has_bias: bool = True
    """Whether a bias is added."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossEntropyRequest(Request):
    """Vocabulary-parallel cross entropy: `CrossEntropyFn`."""

    operation: ClassVar[str] = "cross_entropy"
    vocab_size: int
    """Entries of the tokenizer; columns from here on are padding, are never predicted and get no gradient."""
    padded_vocab_size: int
    """Columns of the logits over all ranks, a multiple of the tensor-parallel size."""
    seq_length: int
    """s."""
    micro_batch_size: int
    """b."""
    tensor_parallel_size: int = 1
    """t; each rank holds padded_vocab_size / t neighbouring columns."""
    in_fp32: bool = True
    """fp16 and bf16 logits are exponentiated and summed in fp32."""


QUANTIZATIONS = ("tensorwise", "rowwise", "block", "mxfp8")
"""Of the operands of a matmul in fp8; `pretrain.reference.quantization` says bit for bit what each of them is."""


def _require_known(quantization: str) -> None:
    if quantization not in ("", *QUANTIZATIONS):
        msg = f"quantization {quantization!r}; only: {', '.join(QUANTIZATIONS)}, or none"
        raise ValueError(msg)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearRequest(Request):
    """Linear whose input-gradient communication overlaps the weight gradient: `LinearFn`.

    It serves every linear of the model. A column-parallel one passes the tensor-parallel group; a row-parallel one, and
    all of them where t is 1, pass None: then nothing is communicated and the input is whole, whatever
    `sequence_parallel` says.

    The weight gradient: where `main_grad_dtype` is set and the weight has a `main_grad`, the kernel may add it there.
    It then sets `weight.grad_added_to_main_grad = True` and returns a gradient of the weight's shape and any content,
    which the data-parallel hook expects to find and drops. A weight marked `zero_out_wgrad` (an embedding that is the
    output layer too) gets a second gradient from autograd: return the true gradient, or add and return zeros. Always
    right: ignore `main_grad` and return the gradient.
    """

    operation: ClassVar[str] = "linear"
    tensor_parallel_size: int = 1
    """t."""
    sequence_parallel: bool = False
    """The input is split along the sequence; it is gathered first and its gradient is reduce-scattered. Otherwise the
    gradient is all-reduced."""
    main_grad_dtype: torch.dtype | None = None
    """Dtype of `weight.main_grad` when the weight gradient is to be added there by the kernel itself (gradient
    accumulation fusion); None: return it to autograd."""
    quantization: str = field(default="", metadata={"since": (1, 4)})
    """How operands are rounded to fp8, one of `QUANTIZATIONS`; "": they are not. Both of every matmul are, along the
    dimension that it sums over: x and weight along `in` forward, the gradient and weight along `out` for the gradient
    of x, the gradient and x along their rows for that of the weight. Input, output, bias and gradients have `dtype`,
    and sums are accumulated in fp32, or in 14 bits or more."""
    quantized_wgrad: bool = field(default=True, metadata={"since": (1, 4)})
    """Whether the operands of the weight gradient are rounded too; without a quantization it says nothing."""
    shapes: tuple[tuple[int, int], ...] = field(default=(), metadata={"since": (1, 4)})
    """(out, in) of this rank's weights that the kernel serves, each once; only with a quantization."""

    def __post_init__(self) -> None:
        """Refuse a quantization that no kernel knows."""
        _require_known(self.quantization)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupedLinearRequest(Request):
    """Linears of the experts of one rank, on rows that are sorted by expert: `GroupedLinearFn`.

    One kernel serves both: from h to f or, gated, to 2 f features, and from f to h.
    """

    operation: ClassVar[str] = "grouped_linear"
    experts: int
    """Experts of this rank."""
    hidden_size: int
    """h."""
    ffn_hidden_size: int
    """f, the width of an expert on this rank."""
    is_gated: bool
    """Whether the first linear has 2 f outputs (swiglu)."""
    rows: int
    """Rows of one call if all experts have equally many; the router decides how many there are, from zero on."""
    main_grad_dtype: torch.dtype | None = None
    """As `LinearRequest.main_grad_dtype`; ignoring `main_grad` is always right."""
    quantization: str = field(default="", metadata={"since": (1, 4)})
    """As `LinearRequest.quantization`, each expert by itself: its rows are one matrix, and its weight another."""
    quantized_wgrad: bool = field(default=True, metadata={"since": (1, 4)})
    """As `LinearRequest.quantized_wgrad`."""

    def __post_init__(self) -> None:
        """Refuse a quantization that no kernel knows."""
        _require_known(self.quantization)


@dataclass(frozen=True, kw_only=True, slots=True)
class MoePermuteRequest(Request):
    """A copy of each token for each of its experts, sorted by expert, and back: `MoePermutation`."""

    operation: ClassVar[str] = "moe_permute"
    experts: int
    """E, all experts of the layer."""
    topk: int
    """k, experts of every token."""
    hidden_size: int
    """h."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterRequest(Request):
    """Choice of the experts of each token, and their weights: `RouterFn`. `dtype` is that of the logits (fp32).

    An expert's score is its logit (softmax), its part of the softmax over all (pre_softmax), or its sigmoid. Those of
    the k highest scores, with the bias added, are chosen; of equal ones that of the lower index.
    """

    operation: ClassVar[str] = "router"
    experts: int
    """E, all experts of the layer."""
    topk: int
    """k, experts of every token."""
    score_function: str
    """"softmax": the weights are a softmax over the chosen logits. "sigmoid": the chosen scores, divided by their sum +
    1e-20 where k is over 1."""
    pre_softmax: bool = False
    """The weights are the chosen scores of a softmax over all experts, not divided by their sum."""
    num_groups: int | None = None
    """Groups of neighbouring experts; it divides E."""
    group_topk: int | None = None
    """Groups from which a token's experts are chosen: those with the highest sum of their two highest scores (of one in
    groups of one), bias included; of equal ones that of the lower index."""
    scaling_factor: float = 1.0
    """The weights are multiplied by it last."""
    has_bias: bool = False
    """Whether there is a bias, which chooses and never weighs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerRequest(Request):
    """Adam or AdamW and the gradient norm: `OptimizerKernels`. `dtype` is that of the main parameters (fp32)."""

    operation: ClassVar[str] = "optimizer"
    name: str = "adam"
    """"adam" (weight decay added to the gradient) or "adamw" (decoupled weight decay)."""
    exp_avg_dtype: torch.dtype = field(default=torch.float32, metadata={"since": (1, 4)})
    """Dtype of the state exp_avg, fp32 or bf16; see `OptimizerKernels.adam`."""
    exp_avg_sq_dtype: torch.dtype = field(default=torch.float32, metadata={"since": (1, 4)})
    """Dtype of the state exp_avg_sq."""

    @property
    def state_dtypes(self) -> dict[str, torch.dtype]:
        """Both, by the names of the states."""
        return {"exp_avg": self.exp_avg_dtype, "exp_avg_sq": self.exp_avg_sq_dtype}


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectivesRequest(Request):
    """Options of the process groups: `ProcessGroupOptionsFn`. `dtype` is that of the gradients."""

    operation: ClassVar[str] = "collectives"
    process_group: str
    """`Backend.process_group` ("nccl", "hccl", "gloo")."""
    timeout_minutes: int
    """Timeout of a collective."""
