"""The loss scale of DeepSpeed's engine is megatron-core's, overflow by overflow."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from megatron.core.optimizer.grad_scaler import DynamicGradScaler

from pretrain.bridge.deepspeed.zero_step import DynamicLossScale
from pretrain.recipe.sections.precision import PrecisionSection


@given(
    overflows=st.lists(st.booleans(), max_size=40),
    window=st.integers(1, 5),
    hysteresis=st.integers(1, 3),
)
@example(overflows=[True, False, False, True], window=2, hysteresis=2)  # a growth window forgives the first overflow
@example(overflows=[True, False, True], window=2, hysteresis=2)
@example(overflows=[True] * 9, window=2, hysteresis=1)  # down to the minimum
def test_it_counts_as_megatron_does(overflows, window, hysteresis):
    ours = DynamicLossScale(
        PrecisionSection(
            dtype="fp16", initial_loss_scale=64.0, min_loss_scale=4.0, loss_scale_window=window, hysteresis=hysteresis
        )
    )
    theirs = DynamicGradScaler(64.0, 4.0, 2.0, 0.5, window, hysteresis)
    for overflow in overflows:
        ours.update_scale(overflow)
        if not overflow:
            ours.count_step()
        theirs.update(overflow)
        expected = theirs.state_dict()
        assert ours.counts == {**expected, "scale": expected["scale"].item()}
