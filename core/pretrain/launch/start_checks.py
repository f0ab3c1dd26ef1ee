"""Checks of a run before its first iteration: one list for the run, --dry-run and the doctor.

A check raises the error with which the run ends, and changes nothing. What needs the device, the built model or all
ranks is checked where it is used: abilities of the device, kernels, the content of a checkpoint and its schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pretrain.data.needed import own_corpus, samples_needed
from pretrain.errors import DataError, PretrainError, RunError, without_lm_eval
from pretrain.launch.run_directory import RUNS, check_run_dir, holds_run
from pretrain.launch.run_lock import FILE as LOCK
from pretrain.launch.run_lock import require_free
from pretrain.report.metrics import FILE as METRICS
from pretrain.report.metrics import appended, read_metrics
from pretrain.stores.address import is_address
from pretrain.stores.stored_inputs import local_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pretrain.data.needed import SampleCounts
    from pretrain.launch.run_directory import Resume
    from pretrain.recipe import Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A run that is about to start."""

    recipe: Recipe
    run_dir: Path | None  # None: a new one
    resume: Resume  # value of `--resume`

    @property
    def resumes(self) -> bool:
        """True if the run of the directory is continued."""
        return self.resume != "no" and self.run_dir is not None and holds_run(self.run_dir)


class StartCheck(NamedTuple):
    """A check."""

    name: str  # its subject, as the doctor calls it
    look: Callable[[Start], None]  # raises where the run cannot start
    on_rank0: bool = False  # before it joins the others; else before the ranks start, without torch

    def problem(self, start: Start) -> PretrainError | None:
        """Return what is wrong; None where nothing is."""
        try:
            self.look(start)
        except PretrainError as error:
            return error
        return None


def require_startable(start: Start, *, on_rank0: bool) -> None:
    """Make the checks of one process; the first problem is raised."""
    for check in CHECKS:
        if check.on_rank0 == on_rank0:
            check.look(start)


def folders_of_checkpoints(recipe: Recipe, run_dir: Path | None) -> Iterator[Path]:
    """Yield the folders outside of the run directory that the run must have for itself."""
    if not isinstance(recipe.checkpoint.save, str) or is_address(recipe.checkpoint.save):
        return
    folder = Path(recipe.checkpoint.save)
    if run_dir is None or run_dir.absolute() not in folder.absolute().parents:
        yield folder
        around = folder.resolve().parent
        if (around / LOCK).exists():  # the directory of a run that saves there by default, and may still run
            yield around


def _run_directory(start: Start) -> None:
    check_run_dir(start.run_dir, start.resume)
    require_free(start.run_dir or RUNS)


def _metrics(start: Start) -> None:
    if start.run_dir is None or not (start.run_dir / METRICS).exists():
        return
    appended(start.run_dir / METRICS).close()
    if start.resumes:
        read_metrics(start.run_dir / METRICS)


def _loggers(start: Start) -> None:
    """Check packages and logins, unless the run resumes: then a service that is down costs its curves alone."""
    from pretrain.plugins.logger import Run  # noqa: PLC0415  --help needs none of them
    from pretrain.report.loggers.choice import loggers_of  # noqa: PLC0415

    if not start.resumes:
        for logger in loggers_of(start.recipe, Run(directory=start.run_dir or RUNS, note=lambda _line: None)).values():
            logger.check()


def _tasks(start: Start) -> None:
    """Look for the library alone: reading its tasks, let alone their data, takes long."""
    if start.recipe.evaluation.tasks and find_spec("lm_eval") is None:
        raise without_lm_eval()


def _checkpoint_folder(start: Start) -> None:
    from pretrain.checkpoint.owner import require_own  # noqa: PLC0415  --help needs none of these
    from pretrain.checkpoint.stored_folder import folder_of_run  # noqa: PLC0415

    place = folder_of_run(start.recipe, start.run_dir or RUNS)
    if not place.is_local:
        place.require_writable()
    require_own(start.recipe, start.run_dir, resume=start.resumes)
    for folder in folders_of_checkpoints(start.recipe, start.run_dir):
        require_free(folder)


def _kill_switch(start: Start) -> None:
    path = start.recipe.train.kill_switch_path
    if path is not None and Path(path).exists():
        msg = f"train.kill_switch_path: {path} exists, so a training would stop at once.\nRemove it first."
        raise RunError(msg)


def _inputs(start: Start) -> None:
    recipe = start.recipe
    require_inputs(recipe, samples_needed(recipe, recipe.train.train_iters or 0))
    if built_inputs(recipe):
        own_corpus().require_buildable(recipe)


def _sample_indices(start: Start) -> None:
    from pretrain.data.samples.checks import check_cache  # noqa: PLC0415  numpy: after the recipe has been read

    check_cache(start.recipe.data)


def _starting_checkpoint(start: Start) -> None:
    from pretrain.checkpoint.starting_checkpoint import require_of_recipe, starting_directory  # noqa: PLC0415
    from pretrain.data.tokenizers import load_tokenizer  # noqa: PLC0415  all as above

    recipe = start.recipe
    directory = starting_directory(recipe, start.run_dir, resume=start.resumes)
    if directory is not None:
        tokenizer = None if built_inputs(recipe) else load_tokenizer(recipe.tokenizer)
        weights_only = directory.is_given and recipe.checkpoint.finetune
        require_of_recipe(directory.path, recipe, tokenizer, weights_only=weights_only)


CHECKS = (
    StartCheck("run directory", _run_directory),
    StartCheck("metrics", _metrics),
    StartCheck("kill switch", _kill_switch),
    StartCheck("checkpoint folder", _checkpoint_folder),
    StartCheck("data", _inputs),
    StartCheck("sample indices", _sample_indices),
    StartCheck("loggers", _loggers),
    StartCheck("tasks", _tasks, on_rank0=True),
    StartCheck("starting checkpoint", _starting_checkpoint, on_rank0=True),
)
"""All checks, the cheapest first."""


def require_inputs(recipe: Recipe, samples: SampleCounts) -> None:
    """Check the tokenizer and token files of so many samples a split; what `data.corpus` builds may be missing."""
    problems = [] if built_inputs(recipe) else _input_problems(recipe, samples)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        lines = [str(problem).splitlines()[0] for problem in problems]
        msg = f"{len(problems)} inputs are missing or damaged; paths are relative to the working directory."
        raise DataError("\n".join([msg, *lines]))


def _input_problems(recipe: Recipe, samples: SampleCounts) -> list[PretrainError]:
    from pretrain.data.samples.checks import check_token_files, samples_of_files  # noqa: PLC0415  --help needs none of them
    from pretrain.data.token_files.reading import TokenFile, for_each  # noqa: PLC0415
    from pretrain.data.tokenizers import load_tokenizer  # noqa: PLC0415

    problems: list[PretrainError] = []
    tokenizer = None
    try:
        tokenizer = load_tokenizer(recipe.tokenizer)
        tokenizer.encode(recipe.evaluation.prompt or "")  # not after the training: it may have an unknown character
    except DataError as error:
        problems.append(error)

    def problem(given_and_needed: tuple[str, list[int]]) -> PretrainError | None:
        given, needed = given_and_needed
        try:
            path = local_prefix(given)
            if tokenizer is None:
                TokenFile.open(path)
            else:
                check_token_files(path, tokenizer, recipe.data, needed, recipe.model.seq_length)
        except PretrainError as error:
            return error
        return None

    files = samples_of_files(recipe.data, (samples.train, samples.valid, samples.test))
    problems += filter(None, for_each(files, problem))
    return problems


def built_inputs(recipe: Recipe) -> str:
    """Return the missing files that the run will build; empty if there are none."""
    if recipe.data.corpus is None or recipe.data.path is None:
        return ""
    if own_corpus().is_complete(recipe.data.path, recipe.tokenizer):
        return ""
    tokenizer = f" and {recipe.tokenizer.file}" if recipe.tokenizer.file else ""
    what = f"{recipe.data.path}{tokenizer}"
    verb, them = ("are", "them") if tokenizer else ("is", "it")
    return f"data: {what} {verb} missing, the run first builds {them} from {recipe.data.corpus.source}"
