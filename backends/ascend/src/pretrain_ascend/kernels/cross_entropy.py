"""npu_cross_entropy_loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.reference.accumulation import accumulation_dtype
from pretrain_ascend.kernels import operators

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from pretrain.plugins.requests import CrossEntropyRequest


class CrossEntropy:
    """A `CrossEntropyFn` for one rank. The kernel returns the dtype that it is given, so it is given fp32."""

    def __init__(self, request: CrossEntropyRequest) -> None:
        self.vocab_size = request.vocab_size
        self.in_fp32 = request.in_fp32

    def __call__(self, logits: Tensor, target: Tensor, group: ProcessGroup | None = None) -> Tensor:
        """Return fp32 [s, b] for logits [s, b, padded_vocab_size] and target [s, b].

        Raises:
            ValueError: a group of several ranks.
        """
        if group is not None and group.size() > 1:
            msg = f"cross_entropy_loss: a group of {group.size()} ranks; only one"
            raise ValueError(msg)
        entries = logits[..., : self.vocab_size].flatten(0, 1)  # padding is never predicted
        entries = entries.to(accumulation_dtype(entries.dtype) if self.in_fp32 else entries.dtype).contiguous()
        loss: Tensor = operators.call("npu_cross_entropy_loss", entries, target.flatten(), reduction="none")[0]
        return loss.view(target.shape).float()
