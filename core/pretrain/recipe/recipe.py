"""One training run as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from pretrain.recipe.origin import Origin
from pretrain.recipe.section import Section
from pretrain.recipe.sections.checkpoint import CheckpointSection
from pretrain.recipe.sections.data import DataSection
from pretrain.recipe.sections.engine.engine import EngineSection
from pretrain.recipe.sections.evaluation import EvaluationSection
from pretrain.recipe.sections.kernels import KernelsSection
from pretrain.recipe.sections.logging import LoggingSection
from pretrain.recipe.sections.model import ModelSection
from pretrain.recipe.sections.optimizer import OptimizerSection
from pretrain.recipe.sections.parallel import ParallelSection
from pretrain.recipe.sections.precision import PrecisionSection
from pretrain.recipe.sections.recompute import RecomputeSection
from pretrain.recipe.sections.schedule import ScheduleSection
from pretrain.recipe.sections.tokenizer import TokenizerSection
from pretrain.recipe.sections.train import TrainSection
from pretrain.recipe.stages import layers_of_chunks

if TYPE_CHECKING:
    from pretrain.recipe.origin import AccumulationSteps


class Recipe(Section):
    """One training run as data: frozen and complete. `make_recipe` and `load_recipe` also check that the keys fit.

    Two are equal if all their keys have equal values, wherever they come from.
    """

    model: ModelSection
    tokenizer: TokenizerSection
    data: DataSection
    train: TrainSection
    optimizer: OptimizerSection
    schedule: ScheduleSection = ScheduleSection()
    precision: PrecisionSection = PrecisionSection()
    parallel: ParallelSection = ParallelSection()
    recompute: RecomputeSection = RecomputeSection()
    engine: EngineSection = EngineSection()
    kernels: KernelsSection = KernelsSection()
    checkpoint: CheckpointSection = CheckpointSection()
    evaluation: EvaluationSection = EvaluationSection()
    logging: LoggingSection = LoggingSection()

    _origin: Origin = PrivateAttr(default=Origin())

    @property
    def source(self) -> str:
        """The file it was read from, for error messages; not part of the data."""
        return self._origin.source

    @property
    def notices(self) -> tuple[str, ...]:
        """Lines about keys that were read in another way than they were written; not part of the data."""
        return self._origin.notices

    @property
    def accumulation_steps(self) -> AccumulationSteps | None:
        """Gradient accumulation steps that a DeepSpeed file states; not part of the data."""
        return self._origin.accumulation_steps

    @property
    def model_parallel_size(self) -> int:
        """Number of ranks that hold one replica of the model: tensor x pipeline."""
        return self.parallel.tensor_model_parallel_size * self.parallel.pipeline_model_parallel_size

    @property
    def layers_of_chunks(self) -> tuple[int, ...]:
        """Number of layers of every pipeline stage, or of every chunk of them, in the order of the layers."""
        return layers_of_chunks(self.parallel, self.model.num_layers)

    def padded_vocab_size(self, vocab_size: int) -> int:
        """Return the number of rows of the embedding for a tokenizer of `vocab_size` tokens."""
        return self.model.padded_vocab_size(vocab_size, self.parallel.tensor_model_parallel_size)

    def model_post_init(self, context: Any, /) -> None:
        """Keep the origin from the validation context."""
        if context:
            self._origin = context["origin"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self.model_dump() == other.model_dump()

    def __hash__(self) -> int:
        return hash(self.model_dump_json())
