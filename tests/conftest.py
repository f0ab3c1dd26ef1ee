"""Fixtures of all tests."""

import gc
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from forked_python import client
from pretrain.bridge import megatron
from pretrain.cpu.backend import CpuBackend

DTYPE = re.compile(r"(-weights \w+)?-(fp32|bf16|fp16)]$")
LONG, LONGEST = re.compile(r"-[sq](2112|8192)-"), re.compile(r"-[sq]8192-")
ONE_IN = {
    "backends/cuda/tests/kernels": 48,  # in Triton's interpreter
    "tests/checkpoint/test_damage.py": 3,
    "tests/checkpoint/test_storage.py": 5,
    "tests/cpu/test_conformance.py": 12,
    "tests/bridge/test_deepspeed_ranks.py": 4,
    "tests/checkpoint/test_ranks.py": 2,
    "tests/engine/megatron/test_forward_only.py": 5,
    "tests/forked_python/test_forked_python.py": 8,
    "tests/tools/convert/test_loading.py": 5,
    "tests/checkpoint/test_snapshot.py": 4,
    "tests/conformance/test_mutants.py": 6,
    "tests/e2e/test_bad_deepspeed_input.py": 7,
    "tests/launch/test_ranks.py": 2,
    "backends/ascend/tests/test_documented_a2.py": 8,
    "backends/ascend/tests/test_documented_first.py": 8,
    "tests/tools/corpus": 4,
    "tests/engine/deepspeed/test_nvme.py": 4,
    "tests/engine/deepspeed/test_engine.py": 8,
    "tests/engine/megatron/test_engine.py": 8,
    "tests/launch/processes/test_signals.py": 4,
    "tests/recipe/deepspeed/test_every_key.py": 6,
    "tests/cli/test_checkpoint_exchange.py": 3,
    "tests/conformance/test_offers.py": 4,
    "tests/tools/convert/formats/test_deepspeed_written.py": 2,
    "tests/tools/migrate/cell": 3,
}
"""Folder or file -> of so many cases of a parametrized test one is run on every commit; `make test-all` has all."""

ROOT = Path(__file__).parents[1]
THREADS = pytest.StashKey[int]()
MODULES = pytest.StashKey[int]()
client.behave_as_started()  # xdist's workers are forked
FREEZE, UNFREEZE = gc.freeze, gc.unfreeze

collect_ignore = ["clusters"]  # of the folder's tests, where it is not named: they are of `make test-clusters`

# No deadlines: a busy machine must not fail a test. The same examples in every run; of a commit's tests fewer.
settings.register_profile("pretrain", deadline=None, derandomize=True)
settings.register_profile("commit", settings.get_profile("pretrain"), max_examples=25)

# nohup and a shell's background jobs ignore these, and processes that tests start would inherit it.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

megatron.install(CpuBackend())  # before the first of the many tests that import megatron.core


def pytest_configure(config):
    settings.load_profile("commit" if config.option.markexpr == "not full" else "pretrain")


@pytest.fixture(autouse=True)
def few_threads(request):
    """Engines that are cyclic garbage keep their process groups, whose threads wake 100 times a second.

    Those of three engines take 5 % of a core; a collection for each engine took 20 % of the tests' time.
    """
    yield
    stash = request.config.stash
    if _threads() > stash.get(THREADS, 0) + 130:  # one engine has 45
        _collect()
        stash[THREADS] = _threads()  # those that are in use


@pytest.fixture(autouse=True, scope="session")
def never_unfrozen():
    """Let trainings in this process neither freeze nor unfreeze: a collection of all that is imported takes 0.4 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", lambda: None)
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def frozen(request, never_unfrozen):
    """Leave imports and collected tests out of the collections that engines cause."""
    stash = request.config.stash
    if len(sys.modules) > stash.get(MODULES, 0) + 100:  # the first module, or one after imports
        _collect()
        FREEZE()
        stash[MODULES] = len(sys.modules)


@pytest.fixture
def real_collector():
    """Give a test the collector with its own gc.freeze and gc.unfreeze."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", FREEZE)
        patch.setattr(gc, "unfreeze", UNFREEZE)
        yield
    FREEZE()  # at once: to collect before takes seconds where all tests are collected, and a test leaves no garbage


def _collect():
    gc.collect()
    gc.collect()  # the first frees optimizers, whose shards hold autograd nodes, which hold the model


def _threads():
    folder = Path("/proc/self/task")
    return folder.stat().st_nlink if folder.is_dir() else 0


@pytest.fixture(scope="module")
def forked_python():
    """Let the module's tests fork Python processes, and these their own, which saves each the import of torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", client.Popen)
        yield


@pytest.fixture(scope="session")
def shared_data():
    """The folder with GPT-2's and GPT-NeoX's tokenizers beside the repository; the test is skipped without it."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not (folder / "gpt2-vocab.json").is_file():
        pytest.skip(f"needs the tokenizer files in {folder.relative_to(folder.parents[2])}, which are not here")
    return folder


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes():
    """Let xdist's workers be forked from one process, and what their tests fork from one that was forked with them."""
    if sys.platform == "linux":
        subprocess.Popen = client.Popen  # execnet's


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect tests without collecting garbage: of what imports and tests make nearly all stays, and takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Have one worker run all tests whose ranks compute; two at a time would compete for the cores.

    Those of tests/launch mostly wait, so that any worker runs them beside the others.
    """
    _one_dtype_a_case(items)
    _of_the_kit_the_numbers_alone(items)
    _some_cases(items)
    for item in items:
        # Every one of a backend asks the same two ranks, or the same trainings.
        is_of_kit = item.name.startswith("test_two_ranks") or "::TestTraining::" in item.nodeid
        if is_of_kit and item.path.is_relative_to(ROOT / "backends"):
            item.add_marker(pytest.mark.full)
        if item.get_closest_marker("ranks") or is_of_kit:
            item.add_marker(pytest.mark.xdist_group("ranks"))


def _of_the_kit_the_numbers_alone(items):
    """Leave the kit's other tests of kernels in Triton's interpreter to `make test-all`: it is slow."""
    for item in items:
        is_of_kit = item.cls is not None and item.cls.__module__.startswith("pretrain.conformance.")
        is_interpreted = item.path.is_relative_to(ROOT / "backends/cuda/tests/kernels")
        if is_of_kit and is_interpreted and item.originalname != "test_agrees_with_float64":
            item.add_marker(pytest.mark.full)


def _some_cases(items):
    """Leave slow products of parameters a part of their cases on every commit, spread over each test's list."""
    seen = Counter()
    for item in items:
        if not hasattr(item, "callspec") or item.get_closest_marker("full"):
            continue
        place = item.path.relative_to(ROOT).as_posix()
        test = place, item.cls, item.originalname
        share = next((share for folder, share in ONE_IN.items() if f"{place}/".startswith(f"{folder}/")), 1)
        if seen[test] % share:
            item.add_marker(pytest.mark.full)
        seen[test] += 1


def _one_dtype_a_case(items):
    """Leave each case of the conformance kit one dtype on every commit, in turn; all of them are in `make test-all`.

    That a kernel takes the others is in the tables of test_offers.py. The reference's kernels are tested in tests/cpu;
    length 2112 is compared with float64 for the CPU's own kernels, which cut rows; `make test-all` has all.
    """
    cases, seen = {}, Counter()
    for item in items:
        if item.cls is None:
            continue
        is_cpus, is_references = item.path.parent.name == "cpu", "[reference-" in item.name
        compares_long = is_cpus and not is_references and "test_agrees" in item.name
        if (LONGEST if compares_long else LONG).search(item.name) or (is_references and not is_cpus):
            item.add_marker(pytest.mark.full)
            continue
        if dtype := DTYPE.search(item.name):
            cases.setdefault((item.path, item.cls, item.name[: dtype.start()]), []).append(item)
    for (path, _, name), dtypes in cases.items():
        test = path, name.partition("[")[0]
        for item in dtypes:
            if item is not dtypes[seen[test] % len(dtypes)]:
                item.add_marker(pytest.mark.full)
        seen[test] += 1
