"""The megatron engine: megatron-core's schedules, data parallelism and (distributed) optimizer."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import get_canonical_lr_for_logging
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared

from pretrain.bridge.megatron import optimizer as bridge_optimizer
from pretrain.checkpoint.megatron_state import MegatronState
from pretrain.engine import groups
from pretrain.engine.experts import ExpertLoad
from pretrain.engine.forward import PerTokenGradients, forward_loss, mean_of_means, share_of_mean
from pretrain.engine.megatron import data_parallel
from pretrain.engine.megatron.forward_pass import ForwardPass
from pretrain.engine.optimizers.choice import optimizer_of
from pretrain.engine.protocol import Step
from pretrain.engine.schedule import build_schedule
from pretrain.model.weights import is_replicated, named_weights, partial_gradients
from pretrain.plugins.constant_weights import constant_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from torch import Tensor

    from pretrain.engine.protocol import Batch, EngineParts, KeepUpdate
    from pretrain.recipe import Recipe
    from pretrain.report.timers import PhaseTimers


class MegatronEngine(ForwardPass):
    """See `pretrain.engine.protocol.Engine`."""

    def __init__(self, parts: EngineParts) -> None:
        """Build and wrap the model chunks of this rank, with the negotiated kernels in megatron-core's optimizer."""
        recipe = parts.recipe
        self._norm = parts.kernels.optimizer.gradient_norm
        self._overflow = parts.overflow
        optimizer = optimizer_of(recipe.optimizer)
        adam = optimizer.for_megatron(recipe, parts.kernels.optimizer, groups.GroupsOfWeights())
        bridge_optimizer.install(adam, self._norm, self._overflow)
        bridge_optimizer.keep_local_sums()
        bridge_optimizer.sum_over_tensor_ranks(partial_gradients)
        super().__init__(parts, data_parallel.distribute(recipe, parts.chunks()))
        config = data_parallel.optimizer_config(recipe, optimizer)
        self.optimizer = get_megatron_optimizer(
            config,
            self.chunks,
            data_parallel.group_overrides(optimizer, config, self.chunks),
            use_gloo_process_groups=False,
        )
        data_parallel.prepare_states(optimizer, recipe.optimizer, self.optimizer)
        self._config = self.chunks[0].config
        self._per_token = PerTokenGradients() if recipe.train.calculate_per_token_loss else None
        data_parallel.connect(
            self._config, recipe, self.chunks, self.optimizer, self._per_token or finalize_model_grads
        )
        self._experts = ExpertLoad(recipe, self.models, parts.device)
        self._padding = _padding(recipe, parts.vocab_size)
        self.schedule = build_schedule(recipe, self.optimizer)
        self.state = MegatronState(
            self.chunks,
            self.optimizer,
            self._gathered,
            states=optimizer.torch_state_dtypes(recipe.optimizer),
            is_fp32=recipe.precision.dtype == "fp32",
        )

    def close(self) -> None:
        """Release the optimizer from the model; the garbage collector finds the rest."""
        data_parallel.disconnect(self._config)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step, of weights without one of their own."""
        groups = self.optimizer.param_groups
        rate = get_canonical_lr_for_logging(groups) if groups else 0.0
        if rate is None:
            msg = "no parameter group has the learning rate of optimizer.lr: every weight has one of its own"
            raise RuntimeError(msg)
        return float(rate)

    @property
    def loss_scale(self) -> float:
        """Factor of the loss in the backward pass."""
        return float(self.optimizer.get_loss_scale().item())

    def train_step(
        self,
        batches: Iterator[Batch] | None,
        num_microbatches: int,
        timers: PhaseTimers | None = None,
        keep_update: KeepUpdate | None = None,
    ) -> Step:
        """Take one optimizer step."""
        phase: Callable[[str], AbstractContextManager[Any]] = timers.phase if timers else nullcontext
        for chunk in self.chunks:
            if not chunk.training:  # an evaluation came before
                chunk.train()
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        if self._overflow is not None:
            self._overflow.clear()
        with phase("forward-backward"), constant_weights(micro_batches=num_microbatches):
            reports = self._run(forward_loss, batches, num_microbatches, forward_only=False)
        loss = None
        if reports:
            loss = mean_of_means(reports) if self._per_token is None else share_of_mean(reports, self._per_token.tokens)
        if keep_update is not None and not keep_update(loss):  # the gradients are zeroed before the next step
            metrics = {"num_zeros_in_grad": None, **self._take_experts(num_microbatches, counts=False)}
            return Step(loss=loss, grad_norm=None, skipped=False, withheld=True, metrics=metrics)
        with phase("optimizer"):
            succeeded, norm, zeros = self.optimizer.step()
        counts_zeros = self.recipe.logging.log_num_zeros_in_grad
        return Step(
            loss=loss,
            own_gradients=None if self.recipe.precision.dtype == "fp16" else bridge_optimizer.local_sum(self.chunks),
            grad_norm=torch.as_tensor(norm, dtype=torch.float32, device=self._device) if succeeded else None,
            skipped=not succeeded,
            metrics={
                "num_zeros_in_grad": int(zeros - self._padding) if succeeded and counts_zeros else None,
                **self._take_experts(num_microbatches, counts=succeeded),
            },
        )

    def _take_experts(self, num_microbatches: int, *, counts: bool) -> Mapping[str, Tensor | None]:
        replicas = parallel_state.get_data_parallel_world_size()
        return self._experts.take(num_microbatches, replicas, counts=counts)

    def advance_schedule(self, samples: int) -> None:
        """Advance the learning-rate schedule."""
        self.schedule.step(increment=samples)

    def parameters_norm(self) -> Tensor:
        """Return the norm over parameters that this rank alone holds, summed over the model-parallel ranks."""
        with self._gathered():
            counted = [
                parameter
                for chunk in self.chunks
                for parameter in chunk.parameters()
                if param_is_not_shared(parameter) and param_is_not_tensor_parallel_duplicate(parameter)
            ]
            dense, experts = (
                self._norm([parameter.detach() for parameter in counted if is_replicated(parameter) == dense]).square()
                for dense in (True, False)
            )
        dist.all_reduce(dense, group=parallel_state.get_model_parallel_group())
        dist.all_reduce(experts, group=parallel_state.get_expert_tensor_model_pipeline_parallel_group())
        return (dense + experts).sqrt()

    @contextmanager
    def replicated_weights(self) -> Iterator[list[tuple[str, Tensor]]]:
        """Enter a block with all weights of this rank, which are whole in it."""
        with self._gathered():
            yield named_weights(self.models)

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        """Finish the parameter gather that would otherwise overlap the next training forward pass."""
        overlaps = self.recipe.parallel.overlap_param_gather
        for chunk in self.chunks if overlaps else ():
            chunk.disable_forward_pre_hook()
        try:
            yield
        finally:
            for chunk in self.chunks if overlaps else ():
                chunk.enable_forward_pre_hook()


def _padding(recipe: Recipe, vocab_size: int) -> int:
    """Count the weights of tokens that do not exist; how many depends on the tensor-parallel size."""
    copies = 2 if recipe.model.untie_embeddings_and_output_weights else 1
    return (recipe.padded_vocab_size(vocab_size) - vocab_size) * recipe.model.hidden_size * copies
