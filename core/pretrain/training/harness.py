"""Tasks of lm-evaluation-harness, and a model as it asks one; on rank 0 alone.

This is the only module that imports lm-eval, which is an extra of this distribution.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval import utils
from lm_eval.api.model import TemplateLM
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager
from tqdm import tqdm

from pretrain.data.tokenizers.tokenizer import end_token
from pretrain.engine.protocol import ScoredTokens
from pretrain.errors import TaskError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from pretrain.data.tokenizers.tokenizer import Tokenizer
    from pretrain.recipe.sections.outputs import EvaluationSection

_SEED = 1234  # lm-eval's own default, with which it draws the examples of few-shot prompts
_GENERATES = "generate_until"
_RESAMPLED = 1000
"""Resamples for the standard error of a metric such as perplexity; lm-eval takes 100,000, in many processes."""
_NO_POOL = "DISABLE_MULTIPROC"  # lm-eval looks for it whenever it resamples


class HarnessModel(TemplateLM):  # type: ignore[misc]  # lm-eval is imported where it is used, not by mypy
    """A causal model of so many tokens at once.

    `score` is `ForwardEngine.log_likelihoods`, called with at most `at_once` samples.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        score: Callable[[Sequence[ScoredTokens]], Tensor],
        at_once: int,
        *,
        quiet: bool,
    ) -> None:
        super().__init__()
        self._tokenizer, self._score, self._at_once, self.quiet = tokenizer, score, at_once, quiet
        self.max_length = max_length
        self._begin = tokenizer.encode("")  # what a tokenizer puts before every text, such as <s>

    @property
    def eot_token_id(self) -> int:
        """The end-of-document token, which stands before a text without context too."""
        return end_token(self._tokenizer, "lm-eval")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the tokens of a text, as lm-eval's class for Hugging Face's models does."""
        tokens = self._tokenizer.encode(string)
        starts = add_special_tokens is None and string.startswith(self._tokenizer.decode([self.prefix_token_id]))
        begin = len(self._begin)
        is_bare = add_special_tokens is False or starts
        return tokens[begin:] if is_bare and begin and tokens[:begin] == self._begin else tokens

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Return of each continuation the log-likelihood, and whether each token is the most probable one."""
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:  # noqa: ARG002
        """Return the log-likelihood of each whole text, of windows in which each token is scored once."""
        windows = [self._windows(*request.args) for request in requests]
        flat = [(("", ""), *window) for of_text in windows for window in of_text]
        scores = iter(self._loglikelihood_tokens(flat))
        return [sum((next(scores)[0] for _ in of_text), 0.0) for of_text in windows]

    def _windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        pairs = utils.get_rolling_token_windows(
            self.tok_encode(text), self.prefix_token_id, max_seq_len=self.max_length, context_len=1
        )
        return [utils.make_disjoint_window(pair) for pair in pairs]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Refuse: `load_tasks` does so by name."""
        raise NotImplementedError

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        samples = [self._sample(*request) for request in requests]
        found: list[tuple[float, bool]] = []
        with tqdm(total=len(samples), desc="Running loglikelihood requests", disable=self.quiet) as bar:
            for begin in range(0, len(samples), self._at_once):
                scores = self._score(samples[begin : begin + self._at_once]).tolist()
                found += [(likelihood, others == 0) for likelihood, others in scores]
                bar.update(len(scores))
        return found

    def _sample(self, texts: tuple[str, str], context: list[int], continuation: list[int]) -> ScoredTokens:
        """Return what the model sees: the last tokens, if there are too many, as lm-eval has it everywhere."""
        if not 0 < len(continuation) <= self.max_length:
            problem = f"it has {len(continuation):,} tokens, and model.seq_length is {self.max_length:,}"
            if not continuation:
                problem = f"it has no token of its own after {texts[0][-60:]!r}"
            msg = f"the answer {texts[1][:60]!r} cannot be scored: {problem}.\nLeave out its task, or change it."
            raise TaskError(msg)
        return ScoredTokens((context + continuation)[-(self.max_length + 1) :], len(continuation))


def load_tasks(section: EvaluationSection) -> Any:
    """Return lm-eval's tasks, with their data; TaskError: one is not known, has no data or needs generated text."""
    own = _own_folder(section.tasks_include_path)
    manager = TaskManager(include_path=own, include_defaults=False)
    if any(name not in manager.task_index for name in section.tasks):  # reading lm-eval's 14,000 takes seconds
        manager = TaskManager(include_path=own)
    for name in section.tasks:
        if name not in manager.task_index:
            msg = (
                f"{name!r} is no task of lm-evaluation-harness.{did_you_mean(name, manager.all_tasks)}\n"
                "`lm_eval ls tasks` lists them; a folder with further ones, as .yaml files, is named by --include-path "
                "(evaluation.tasks_include_path)."
            )
            raise TaskError(msg)
    built = [_built(manager, name) for name in section.tasks]
    try:
        loaded = manager.load([each for one in built for each in (one if isinstance(one, list) else [one])])
    except ValueError as error:  # a task that is named twice, or is in a group too
        msg = f"{error}.\nName each task once."
        raise TaskError(msg) from error
    for name, task in loaded["tasks"].items():
        _require_possible(name, task)
    return loaded


def _own_folder(path: str | None) -> list[str] | None:
    if path and not Path(path).is_dir():  # lm-eval would say that its tasks are not known, after half a minute
        msg = (
            f"--include-path {path} (evaluation.tasks_include_path) is no folder.\n"
            "Name the folder of the tasks' .yaml files, or leave it out for lm-eval's own tasks."
        )
        raise TaskError(msg)
    return [path] if path else None


def _built(manager: Any, name: str) -> Any:
    try:
        return manager._load_spec(name)  # noqa: SLF001  `load` does not say which of several failed
    except Exception as error:  # whatever the libraries raise that read data, from disk or a network
        reason = next(iter(str(error).splitlines()), "")
        msg = (
            f"task {name} cannot be loaded: {type(error).__name__}: {reason[:200]}\n"
            "Without a network its data must be in the cache (HF_HOME) already, or local files of a task that "
            "--include-path names (docs/trained-models.md)."
        )
        raise TaskError(msg) from error


def _require_possible(name: str, task: Any) -> None:
    if task.OUTPUT_TYPE == _GENERATES:
        msg = (
            f"task {name} lets the model write text (generate_until), which takes a whole forward pass a token here.\n"
            "Leave it out, or `pretrain checkpoint convert --to huggingface` for lm_eval's own hf and vllm."
        )
        raise TaskError(msg)
    if getattr(task, "UNSAFE_CODE", False) or getattr(task, "MULTIMODAL", False):
        what = "executes code that the model writes" if getattr(task, "UNSAFE_CODE", False) else "shows images"
        msg = f"task {name} {what}, which is not supported.\nLeave it out."
        raise TaskError(msg)


def evaluate_tasks(loaded: Any, model: HarnessModel, section: EvaluationSection) -> Mapping[str, Any]:
    """Return lm-eval's results; the same documents and prompts every time."""
    for task in loaded["tasks"].values():
        told = 0 if task.OUTPUT_TYPE == "loglikelihood_rolling" else task.get_config("num_fewshot")
        if told is None or (section.tasks_num_fewshot is not None and told != 0):  # 0: a prompt without room for any
            task.set_config(key="num_fewshot", value=section.tasks_num_fewshot or 0)
        task.set_fewshot_seed(seed=_SEED)
    with _in_this_process(), redirect_stdout(io.StringIO() if model.quiet else sys.stderr):
        results: Mapping[str, Any] = evaluate(
            model, loaded, limit=section.tasks_limit, bootstrap_iters=_RESAMPLED, log_samples=False
        )
    return results


@contextmanager
def _in_this_process() -> Iterator[None]:
    """Keep lm-eval from resampling in processes of a pool, which are forks of this one.

    They inherit its handler of SIGTERM, which only takes notice, and the pool would wait for ever until they end by it.
    """
    before = os.environ.get(_NO_POOL)
    os.environ[_NO_POOL] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_POOL]
        else:
            os.environ[_NO_POOL] = before


def table(results: Mapping[str, Any]) -> str:
    """Return lm-eval's own table of results, and of groups where there are any."""
    parts = ("results", "groups") if "groups" in results else ("results",)
    return "\n".join(utils.make_table(results, part).rstrip() for part in parts)
