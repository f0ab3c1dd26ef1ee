"""Hooks that a plugin may implement.

All kernel hooks share one protocol. The core calls each once per process, on every rank with the same request, when
the model is built. A plugin answers with an `Offer`, a `Decline` with its reason, a sequence of both (best first),
or None when it has nothing for the operation. The first offer in plugin order is taken: plugins of the group
`pretrain.plugins` before the backend, the pure-torch reference last; or the kernel that the recipe names. No
kernel is exchanged while training: one that raises stops the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.plugins import hookspec

if TYPE_CHECKING:
    from pretrain.plugins.backend import Backend
    from pretrain.plugins.logger import Logger, Run
    from pretrain.plugins.offer import Answer
    from pretrain.plugins.requests import (
        ActivationRequest,
        AttentionRequest,
        BiasDropoutAddRequest,
        CollectivesRequest,
        CrossEntropyRequest,
        GroupedLinearRequest,
        LinearRequest,
        MoePermuteRequest,
        NormRequest,
        OptimizerRequest,
        RotaryRequest,
        RouterRequest,
        SoftmaxRequest,
    )
    from pretrain.recipe import Recipe


@hookspec
def pretrain_backend() -> Backend | None:
    """Return the device of this plugin, made without touching it; asked of the plugin that `--backend` names, once.

    A plugin that only brings kernels does not implement it.

    Example:
        @hookimpl
        def pretrain_backend() -> Backend:
            return CpuBackend()
    """


@hookspec
def pretrain_logger(recipe: Recipe, run: Run) -> Logger | None:
    """Return the logger of this plugin, asked of those that `logging.loggers` names; docs/writing-a-logger.md.

    Its entry point is in the group `pretrain.loggers`, and the entry's name is the word of the recipe. Contract 1.4.

    Example:
        @hookimpl
        def pretrain_logger(recipe: Recipe, run: Run) -> Logger:
            return CsvLogger(run, **recipe.logging.logger_options.get("csv", {}))
    """


@hookspec
def pretrain_attention(request: AttentionRequest) -> Answer:
    """Offer attention without projections, an `AttentionFn`.

    Kinds: "flash" (never stores the weights), "triangle" (only the blocks on and below the diagonal), "softmax" (all
    weights; may use `built["softmax"]`, which the first two kinds are not given).

    Example:
        @hookimpl
        def pretrain_attention(request: AttentionRequest) -> Answer:
            if request.head_size > 256:
                return Decline(name="fast", kind="flash", reason=f"head size {request.head_size} is over 256")
            return Offer(name="fast", kind="flash", build=lambda built: FastAttention(request))
    """


@hookspec
def pretrain_softmax(request: SoftmaxRequest) -> Answer:
    """Offer scale, mask and softmax in one, a `SoftmaxFn`.

    Example:
        @hookimpl
        def pretrain_softmax(request: SoftmaxRequest) -> Answer:
            if request.keys > 4096:
                return Decline(name="fused", reason=f"{request.keys} keys, at most 4096")
            return Offer(name="fused", build=lambda built: FusedSoftmax(request))
    """


@hookspec
def pretrain_norm(request: NormRequest) -> Answer:
    """Offer layer norm or RMS norm over the last dimension, a `NormFn`, with statistics that are accumulated in fp32.

    Example:
        @hookimpl
        def pretrain_norm(request: NormRequest) -> Answer:
            if request.kind != "LayerNorm":
                return Decline(name="fast", reason=f"{request.kind}: only LayerNorm")
            return Offer(name="fast", build=lambda built: fast_layer_norm(request.epsilon))
    """


@hookspec
def pretrain_rotary(request: RotaryRequest) -> Answer:
    """Offer rotary position embedding, a `RotaryFn`.

    Example:
        @hookimpl
        def pretrain_rotary(request: RotaryRequest) -> Answer:
            return Offer(name="fused", build=lambda built: rotate)
    """


@hookspec
def pretrain_activation(request: ActivationRequest) -> Answer:
    """Offer bias and activation of the MLP, an `ActivationFn`.

    Example:
        @hookimpl
        def pretrain_activation(request: ActivationRequest) -> Answer:
            return Offer(name="compiled", build=lambda built: compiled(request.kind))
    """


@hookspec
def pretrain_bias_dropout_add(request: BiasDropoutAddRequest) -> Answer:
    """Offer residual + dropout(x + bias), a `BiasDropoutAddFn`.

    Dropout draws from the device's default generator, so that the core's bookkeeping (saved, restored and forked per
    tensor-parallel rank) governs it.

    Example:
        @hookimpl
        def pretrain_bias_dropout_add(request: BiasDropoutAddRequest) -> Answer:
            return Offer(name="compiled", build=lambda built: compiled(request.dropout))
    """


@hookspec
def pretrain_cross_entropy(request: CrossEntropyRequest) -> Answer:
    """Offer vocabulary-parallel cross entropy, a `CrossEntropyFn`; columns of padding count as minus infinity.

    Example:
        @hookimpl
        def pretrain_cross_entropy(request: CrossEntropyRequest) -> Answer:
            if request.tensor_parallel_size > 1:
                return Decline(name="fused", reason="tensor_parallel_size over 1")
            return Offer(name="fused", build=lambda built: fused_cross_entropy(request.vocab_size))
    """


@hookspec
def pretrain_linear(request: LinearRequest) -> Answer:
    """Offer the column-parallel linear, a `LinearFn`.

    In the backward pass the all-reduce (or, with sequence parallel, the reduce-scatter) of the input's gradient starts
    before the weight gradient is computed and is waited for after it.

    Example:
        @hookimpl
        def pretrain_linear(request: LinearRequest) -> Answer:
            return Offer(name="overlapped", build=lambda built: Overlapped(request))
    """


@hookspec
def pretrain_grouped_linear(request: GroupedLinearRequest) -> Answer:
    """Offer the linears of experts, a `GroupedLinearFn`. Contract 1.3.

    Example:
        @hookimpl
        def pretrain_grouped_linear(request: GroupedLinearRequest) -> Answer:
            if request.dtype != torch.bfloat16:
                return Decline(name="grouped", reason=f"{request.dtype}, only torch.bfloat16")
            return Offer(name="grouped", build=lambda built: grouped_matmul)
    """


@hookspec
def pretrain_moe_permute(request: MoePermuteRequest) -> Answer:
    """Offer the sorting of tokens by expert, `MoePermutation`. Contract 1.3.

    Example:
        @hookimpl
        def pretrain_moe_permute(request: MoePermuteRequest) -> Answer:
            return Offer(name="fused", build=lambda built: MoePermutation(permute=permute, unpermute=unpermute))
    """


@hookspec
def pretrain_router(request: RouterRequest) -> Answer:
    """Offer the choice of each token's experts and their weights, a `RouterFn`. Contract 1.3.

    Example:
        @hookimpl
        def pretrain_router(request: RouterRequest) -> Answer:
            if request.num_groups is not None:
                return Decline(name="fused", reason=f"{request.num_groups} groups, only without groups")
            return Offer(name="fused", build=lambda built: FusedRouter(request))
    """


@hookspec
def pretrain_optimizer(request: OptimizerRequest) -> Answer:
    """Offer Adam and the gradient norm, `OptimizerKernels`.

    Example:
        @hookimpl
        def pretrain_optimizer(request: OptimizerRequest) -> Answer:
            return Offer(name="fused", build=lambda built: OptimizerKernels(adam=FusedAdam, gradient_norm=norm))
    """


@hookspec
def pretrain_collectives(request: CollectivesRequest) -> Answer:
    """Offer options for process groups, a `ProcessGroupOptionsFn`.

    Called before the parallel groups are made; the function is called with "tp", "pp", "dp", ... and returns what
    `torch.distributed.new_group(pg_options=...)` takes, or None for torch's defaults.

    Example:
        @hookimpl
        def pretrain_collectives(request: CollectivesRequest) -> Answer:
            return Offer(name="high-priority", build=lambda built: options_of)
    """
