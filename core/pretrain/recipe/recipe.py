"""One training run as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from pydantic import PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from pretrain.recipe.checks import problems_of
from pretrain.recipe.checks.effect import without_effect
from pretrain.recipe.document import Document
from pretrain.recipe.layout import lay_out
from pretrain.recipe.origin import Origin
from pretrain.recipe.section import Section
from pretrain.recipe.sections.checkpoint import CheckpointSection
from pretrain.recipe.sections.data import DataSection
from pretrain.recipe.sections.engine import EngineSection
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
    from typing import Self

    from pretrain.recipe.layout import Layout
    from pretrain.recipe.origin import AccumulationSteps


class Recipe(Section):
    """One training run as data: frozen, complete and checked. Two are equal if they describe the same run."""

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
        """Lines that say what was understood in another way than it was written; not part of the data."""
        return self._origin.notices

    @property
    def accumulation_steps(self) -> AccumulationSteps | None:
        """What a DeepSpeed file promised of the layout; not part of the data."""
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

    def layout(self, world_size: int) -> Layout:
        """Divide `world_size` ranks; raises RecipeError where they, or the global batch, do not fit."""
        return lay_out(self, world_size)

    def dump(self) -> str:
        """Return the complete recipe as YAML, every default written out; loading it gives an equal recipe.

        Keys that have no effect in this recipe are left out, because loading refuses them.
        """
        document = Document(self.source, self.model_dump(mode="json", exclude_none=True))
        for path in without_effect(self):
            document.remove(path)
        return yaml.safe_dump(document.data, sort_keys=False, allow_unicode=True, width=120)

    def model_post_init(self, context: Any, /) -> None:
        """Take over the origin that validation was told of."""
        if context:
            self._origin = context["origin"]

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = problems_of(self)
        if problems:
            kind, message = "recipe", "does not fit together"
            raise PydanticCustomError(kind, message, {"problems": problems})
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self.dump() == other.dump()

    def __hash__(self) -> int:
        return hash(self.dump())
