"""torch's scaled_dot_product_attention on an NPU; on a CPU's tensors it would be another kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.requests import Mask
from pretrain_ascend.kernels import sdpa
from pretrain_ascend.kernels.attention_masks import COMPRESSED
from pretrain_ascend.kernels.stand_ins.attention import fusion_attention

if TYPE_CHECKING:
    from torch import Tensor


class Sdpa(sdpa.Sdpa):
    """An `AttentionFn` on fake tensors."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, dropout: float) -> Tensor:
        """Return the context as npu_fusion_attention_v3 makes it, which keeps seed and offset as tensors.

        torch_npu makes the causal mask in every call.
        """
        mask = None if keep is None else ~keep
        if self.request.mask is Mask.CAUSAL:
            mask = torch.ones(COMPRESSED, COMPRESSED, dtype=torch.bool, device=q.device).triu(1)
        options = {"atten_mask": mask, "keep_prob": 1.0 - dropout}
        seed, offset = (q.new_empty(1, dtype=torch.int64) for _ in range(2))  # on the host, of a real device
        return fusion_attention(q, k, v, q.shape[1], "BNSD", seed, offset, **options)[0]
