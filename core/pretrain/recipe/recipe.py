"""One training run as data, and its keys by path."""

from __future__ import annotations

import functools
import inspect
import math
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import PrivateAttr

from pretrain.recipe.section import Section
from pretrain.recipe.sections.data import DataSection, TokenizerSection
from pretrain.recipe.sections.engine import EngineSection
from pretrain.recipe.sections.model import ModelSection
from pretrain.recipe.sections.optimizer import OptimizerSection, ScheduleSection
from pretrain.recipe.sections.outputs import CheckpointSection, EvaluationSection, LoggingSection, ProfileSection
from pretrain.recipe.sections.parallel import ParallelSection, RecomputeSection
from pretrain.recipe.sections.precision import KernelsSection, PrecisionSection
from pretrain.recipe.sections.train import TrainSection
from pretrain.recipe.stages import layers_of_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class AccumulationSteps:
    """Micro-batches per step that a DeepSpeed file states; in a recipe they follow from the ranks."""

    place: str  # "ds_config.json:3: gradient_accumulation_steps"
    steps: int


@dataclass(frozen=True, slots=True)
class RecipeOrigin:
    """Source of a recipe."""

    source: str = "recipe"
    notices: tuple[str, ...] = ()  # a line for each thing that was understood in another way than it was written
    accumulation_steps: AccumulationSteps | None = None  # that the layout must have; None without a DeepSpeed file


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
    profile: ProfileSection = ProfileSection()

    _origin: RecipeOrigin = PrivateAttr(default=RecipeOrigin())

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
        """Number of ranks that compute a sample together: tensor x pipeline x context."""
        parallel = self.parallel
        held = parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size
        return held * parallel.context_parallel_size

    @property
    def own_seq_length(self) -> int:
        """Tokens of a sequence that a rank computes: those of its pieces under context parallelism."""
        return self.model.seq_length // self.parallel.context_parallel_size

    @property
    def least_ranks(self) -> int:
        """Least number of ranks that can train: tensor x pipeline x context, of which experts may need several."""
        parallel = self.parallel
        if self.model.num_experts is None:
            return self.model_parallel_size
        held = parallel.expert_model_parallel_size * parallel.expert_tensor_parallel_size
        return math.lcm(self.model_parallel_size // parallel.pipeline_model_parallel_size, held) * (
            parallel.pipeline_model_parallel_size
        )

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


@functools.cache
def keys_of_recipe() -> dict[str, str]:
    """Return the description of every section and key: "model", "model.num_layers", "data.blend.weight", ..."""
    return {path: description(field) for path, field in walk(Recipe)}


def description(field: FieldInfo) -> str:
    """Return the sentence of a key, or of the section that it is."""
    section = inner_section(field)
    return " ".join((field.description or (inspect.getdoc(section) or "").partition("\n")[0]).split())


def walk(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key under a section with its path, outer ones first."""
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}", field
        inner = inner_section(field)
        if inner is not None:
            yield from walk(inner, f"{prefix}{name}.")


def inner_section(field: FieldInfo) -> type[Section] | None:
    """Return the section that the field holds, also if it may be null or is a list of them."""
    options = [field.annotation]
    for option in options:
        if isinstance(option, type) and not typing.get_args(option) and issubclass(option, Section):
            return option
        options.extend(typing.get_args(option))
    return None
