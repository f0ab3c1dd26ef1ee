"""The DeepSpeed engine: ZeRO 0-3 and offload around the same model, data and schedule."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate

from pretrain.bridge import deepspeed as bridge_deepspeed
from pretrain.bridge.deepspeed import mpu
from pretrain.bridge.deepspeed.zero_state import own_part
from pretrain.bridge.deepspeed.zero_step import drop_gradients, set_loss_scale, watch_overflow
from pretrain.bridge.megatron.optimizer import clip_by_norm
from pretrain.checkpoint.deepspeed_state import DeepSpeedState
from pretrain.engine.deepspeed import swapping
from pretrain.engine.deepspeed.config import deepspeed_config, parameter_groups, splitting
from pretrain.engine.deepspeed.host_adam import stepping_adam
from pretrain.engine.experts import NOT_MEASURED
from pretrain.engine.forward import (
    count_tokens,
    forward_logits,
    forward_loss,
    mean_of_means,
    mean_over_ranks,
    prompt_batch,
    share_of_mean,
)
from pretrain.engine.optimizers.choice import optimizer_of
from pretrain.engine.protocol import Step
from pretrain.engine.schedule import build_schedule
from pretrain.engine.scoring import forward_scores, scored_batches, scores_of_all
from pretrain.model.weights import named_weights, partial_gradients
from pretrain.plugins.constant_weights import constant_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from pretrain.engine.protocol import Batch, EngineParts, KeepUpdate, ScoredTokens
    from pretrain.model.gpt import GPT
    from pretrain.report.timers import PhaseTimers

_NOT_MEASURED = {"num_zeros_in_grad": None, **NOT_MEASURED}
"""Metrics of `Step` that the megatron engine alone measures."""


class DeepSpeedEngine:
    """See `pretrain.engine.protocol.Engine`."""

    reads_data = True

    def __init__(self, parts: EngineParts) -> None:
        """Build this rank's model, with ZeRO-3 in parts, and give it to DeepSpeed with the optimizer."""
        recipe = self.recipe = parts.recipe
        self.vocab_size = parts.vocab_size
        self._device = parts.device
        self._norm = parts.kernels.optimizer.gradient_norm
        self._overflow = parts.overflow
        self._stage = recipe.engine.zero.stage
        deepspeed = bridge_deepspeed.install(parts.backend, planned=parts.planned)
        bridge_deepspeed.disconnect()  # set by an earlier training of this process
        bridge_deepspeed.connect(parts.backend)
        swapping.prepare(recipe, parts.notify)
        (self.model,) = self.models = parts.chunks(**splitting(recipe, deepspeed))
        _sum_partial_gradients(self.model)
        self._own = torch.zeros((), device=self._device)
        self.model.embedding.register_forward_hook(self._watch_gradient)
        groups = parameter_groups(self.model, recipe)
        swapping.require_room(recipe, groups)
        optimizer = optimizer_of(recipe.optimizer)
        stepping = partial(stepping_adam, recipe=recipe, notify=parts.notify, planned=parts.planned)
        self._counted = optimizer.for_deepspeed(recipe.optimizer, parts.kernels.optimizer, stepping)(groups)
        self._engine, self.optimizer, _, _ = deepspeed.initialize(
            model=self.model,
            optimizer=self._counted,
            config=deepspeed_config(recipe, mpu.get_data_parallel_world_size()),
            mpu=mpu,
            dist_init_required=False,
        )
        swapping.report_in_memory(recipe, self.model, self.optimizer, parts.notify)
        self._scale = set_loss_scale(self.optimizer, recipe.precision)
        if self._overflow is not None:
            watch_overflow(self.optimizer, self._overflow)
        self.schedule = build_schedule(recipe, self.optimizer)
        self.state = DeepSpeedState(
            self.model,
            self.optimizer,
            self._counted,
            self._scale,
            states=optimizer.torch_state_dtypes(recipe.optimizer),
            stage=self._stage,
            is_fp32=recipe.precision.dtype == "fp32",
        )

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step, of weights without one of their own."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def loss_scale(self) -> float:
        """Factor of the loss in the backward pass."""
        return float(self.optimizer.loss_scale) if self.recipe.precision.dtype == "fp16" else 1.0

    def train_step(
        self,
        batches: Iterator[Batch] | None,
        num_microbatches: int,
        timers: PhaseTimers | None = None,
        keep_update: KeepUpdate | None = None,
    ) -> Step:
        """Take one optimizer step."""
        phase: Callable[[str], AbstractContextManager[Any]] = timers.phase if timers else nullcontext
        if not self.model.training:  # an evaluation came before
            self.model.train()
        self._engine.set_train_batch_size(
            num_microbatches * self.recipe.train.micro_batch_size * mpu.get_data_parallel_world_size()
        )
        if self._overflow is not None:
            self._overflow.clear()
        self._own.zero_()
        with phase("forward-backward"), constant_weights(micro_batches=num_microbatches):
            loss = self._forward_backward(batches, num_microbatches)
        if keep_update is not None and not keep_update(loss):
            drop_gradients(self.optimizer, self._stage)
            return Step(loss=loss, grad_norm=None, skipped=False, withheld=True, metrics=_NOT_MEASURED)
        with phase("optimizer"):
            norm, skipped = self._update()
        return Step(loss=loss, grad_norm=norm, skipped=skipped, own_gradients=self._own, metrics=_NOT_MEASURED)

    def _watch_gradient(self, _embedding: Any, _inputs: Any, output: Tensor) -> None:
        """Have the gradient of the first activation, which that of any other reaches, added to this rank's sum."""
        if output.requires_grad:
            output.register_hook(self._see_gradient)  # type: ignore[no-untyped-call]

    def _see_gradient(self, gradient: Tensor) -> None:
        self._own += gradient.sum(dtype=torch.float32)

    def _forward_backward(self, batches: Iterator[Batch] | None, num_microbatches: int) -> Tensor:
        """Accumulate the gradients of the step's micro-batches; return its loss on this rank."""
        total = None
        if self.recipe.train.calculate_per_token_loss and batches is not None:
            held = list(islice(batches, num_microbatches))  # gradients are reduced as they come: tokens come first
            total, batches = count_tokens(held, self._device), iter(held)
        reports = []
        for number in range(num_microbatches):
            # By itself DeepSpeed counts micro-batches over all steps, which a batch ramp-up puts out of step.
            self._engine.set_gradient_accumulation_boundary(is_boundary=number == num_microbatches - 1)
            output, summed = forward_loss(batches, self._engine, device=self._device)
            loss, tokens, report = summed(output)
            if total is None:
                loss = loss / tokens.clamp(min=1)
            else:  # it takes the mean over micro-batches, data and context ranks; the loss is c times its part
                loss = loss * (num_microbatches * parallel_state.get_data_parallel_world_size() / total)
            self._engine.backward(loss)
            reports.append(report)
        return mean_of_means(reports) if total is None else share_of_mean(reports, total)

    def _update(self) -> tuple[Tensor | None, bool]:
        """Step the optimizer; return the gradient norm, None when the step was skipped, and whether it was."""
        clipped = self._clip() if self._stage == 0 else None
        self._engine.step()
        if not self._engine.was_step_applied():
            return None, True
        self._counted.taken += 1
        if self._scale is not None:
            self._scale.count_step()
        norm = self._engine.get_global_grad_norm() if clipped is None else clipped
        return torch.as_tensor(norm, device=self._device), False

    def advance_schedule(self, samples: int) -> None:
        """Advance the learning-rate schedule."""
        self.schedule.step(increment=samples)

    @torch.no_grad()
    def evaluate(self, batches: Iterator[Batch] | None, num_microbatches: int, iters: int = 1) -> Tensor:
        """Return the mean loss over all ranks' tokens."""
        self.model.eval()
        reports = []
        with constant_weights(micro_batches=iters * num_microbatches):
            for _ in range(iters * num_microbatches):
                output, summed = forward_loss(batches, self._engine, device=self._device)
                reports.append(summed(output)[2])
                self._release_gathered()
        return mean_over_ranks(reports, self._device)

    @torch.no_grad()
    def next_token_logits(self, tokens: Sequence[int]) -> Tensor:
        """Return the logits of the token after `tokens`."""
        self.model.eval()
        batch, position = prompt_batch(self.recipe, tokens)
        output, at = forward_logits(position, iter([batch]), self._engine, device=self._device)
        logits: Tensor = at(output, non_loss_data=True)
        self._release_gathered()
        return logits[: self.vocab_size]

    @torch.no_grad()
    def log_likelihoods(self, samples: Sequence[ScoredTokens]) -> Tensor:
        """Return log-likelihoods and numbers of tokens that are not the most probable."""
        self.model.eval()
        batches, outputs = scored_batches(self.recipe, samples), []
        with constant_weights(micro_batches=len(batches)):
            for batch in batches:
                arguments = (self.recipe, self.model, self.vocab_size, iter([batch]), self._engine)
                output, scores = forward_scores(*arguments, device=self._device)
                outputs.append(scores(output, non_loss_data=True))
                self._release_gathered()
        rows = len(batches) * self.recipe.train.micro_batch_size
        return scores_of_all(outputs, len(samples), rows, self._device)

    def close(self) -> None:
        """Remove DeepSpeed's hooks from the weights; they would keep model, groups and their threads alive forever."""
        self._engine.destroy()
        bridge_deepspeed.disconnect()

    def parameters_norm(self) -> Tensor:
        """Return the norm over parameters that this rank alone holds, summed over the ranks that hold the others."""
        ours = [p for p in self.model.parameters() if param_is_not_tensor_parallel_duplicate(p)]
        squared = self._norm([own_part(parameter) for parameter in ours]).square().to(self._device)
        if self._stage == 3:
            dist.all_reduce(squared, group=mpu.get_data_parallel_group())
        dist.all_reduce(squared, group=parallel_state.get_tensor_model_parallel_group())
        return squared.sqrt()

    @contextmanager
    def replicated_weights(self) -> Iterator[list[tuple[str, Tensor]]]:
        """Enter a block with all weights of this rank; ZeRO-3 has none."""
        yield [] if self._stage == 3 else named_weights(self.models)

    def _release_gathered(self) -> None:
        """Release weights that stay gathered for a backward pass that never comes: they hold buffers of files."""
        if self.recipe.engine.zero.offload_param.device == "nvme":
            self.optimizer.empty_partition_cache()

    def _clip(self) -> Tensor:
        """Clip the gradients, which without ZeRO every rank has whole, and return their norm."""
        parameters = list(self.model.parameters())
        ours = [p.grad for p in parameters if p.grad is not None and param_is_not_tensor_parallel_duplicate(p)]
        squared = self._norm(ours).square()
        dist.all_reduce(squared, group=parallel_state.get_tensor_model_parallel_group())
        norm = squared.sqrt()
        if self.recipe.optimizer.clip_grad:
            clip_by_norm(parameters, self.recipe.optimizer.clip_grad, norm)
        return norm


def _sum_partial_gradients(model: GPT) -> None:
    """Sum partial gradients as they come: in megatron-core's finalize_model_grads ZeRO has given them away."""
    if parallel_state.get_tensor_model_parallel_world_size() == 1:
        return
    for parameter in partial_gradients(model):
        parameter.register_hook(_sum_over_tensor_parallel_ranks)  # type: ignore[no-untyped-call]


def _sum_over_tensor_parallel_ranks(gradient: Tensor) -> Tensor:
    # A copy: two weights may be given one tensor, such as the biases of a parallel residual.
    total = gradient.to(torch.float32, copy=True)
    dist.all_reduce(total, group=parallel_state.get_tensor_model_parallel_group())
    return total.to(gradient.dtype)
