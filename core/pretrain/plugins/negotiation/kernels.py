"""Kernels of a run: plain callables, negotiated once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.plugins.negotiation.kernel_table import KernelTable
    from pretrain.plugins.signatures import (
        ActivationFn,
        AttentionFn,
        BiasDropoutAddFn,
        CrossEntropyFn,
        LinearFn,
        NormFn,
        OptimizerKernels,
        ProcessGroupOptionsFn,
        RotaryFn,
        SoftmaxFn,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """One callable for each operation that was asked for.

    Take the callable once, when a layer is built, and keep it. An operation that was not asked for raises
    AttributeError; test for it with `"rotary" in kernels`.

    Attributes:
        table: the kernels, their providers, and the reasons against others.
        built: operation -> what its kernel's `Offer.build` returned.
    """

    table: KernelTable
    built: Mapping[str, Any]

    def __contains__(self, operation: str) -> bool:
        return operation in self.built

    @property
    def attention(self) -> AttentionFn:
        """Attention without projections."""
        kernel: AttentionFn = self._kernel("attention")
        return kernel

    @property
    def softmax(self) -> SoftmaxFn:
        """Scale, mask, softmax."""
        kernel: SoftmaxFn = self._kernel("softmax")
        return kernel

    @property
    def norm(self) -> NormFn:
        """Layer norm or RMS norm."""
        kernel: NormFn = self._kernel("norm")
        return kernel

    @property
    def rotary(self) -> RotaryFn:
        """Rotary position embedding."""
        kernel: RotaryFn = self._kernel("rotary")
        return kernel

    @property
    def activation(self) -> ActivationFn:
        """Bias and activation of the MLP."""
        kernel: ActivationFn = self._kernel("activation")
        return kernel

    @property
    def bias_dropout_add(self) -> BiasDropoutAddFn:
        """Residual plus dropout of x plus bias."""
        kernel: BiasDropoutAddFn = self._kernel("bias_dropout_add")
        return kernel

    @property
    def cross_entropy(self) -> CrossEntropyFn:
        """Vocabulary-parallel cross entropy."""
        kernel: CrossEntropyFn = self._kernel("cross_entropy")
        return kernel

    @property
    def linear(self) -> LinearFn:
        """Column-parallel linear."""
        kernel: LinearFn = self._kernel("linear")
        return kernel

    @property
    def optimizer(self) -> OptimizerKernels:
        """Adam and the gradient norm."""
        kernel: OptimizerKernels = self._kernel("optimizer")
        return kernel

    @property
    def collectives(self) -> ProcessGroupOptionsFn:
        """Options of process groups."""
        kernel: ProcessGroupOptionsFn = self._kernel("collectives")
        return kernel

    def _kernel(self, operation: str) -> Any:
        if operation not in self.built:
            msg = f"no kernel was asked for {operation}; there are: {', '.join(self.built)}"
            raise AttributeError(msg)
        return self.built[operation]
