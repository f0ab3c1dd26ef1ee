"""Section `evaluation`: loss and perplexity on held-out text."""

from __future__ import annotations

from pydantic import Field

from pretrain.recipe.section import Float, Int, Section, Str


class EvaluationSection(Section):
    """Loss and perplexity on held-out text, and a sample of what the model writes."""

    interval: Int = Field(
        default=1000,
        ge=0,
        description="Iterations between two evaluations; there is one at the end too. 0: no evaluation at all.",
    )
    iters: Int = Field(default=100, gt=0, description="Global batches of one evaluation.")
    target_loss: Float | None = Field(
        default=None,
        gt=0,
        description="Validation loss to reach by the end, in nats per token; the run reports whether it was reached.",
    )
    prompt: Str | None = Field(
        default=None, min_length=1, description="Text that the model continues at the end of the run."
    )
    prompt_tokens: Int = Field(default=48, gt=0, description="Length of that continuation in tokens.")
