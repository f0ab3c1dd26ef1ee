"""A device that is not the CPU trains as the CPU does: discovered, used and tested as a vendor's backend.

It changes torch for a whole process, so that every test here has processes of its own. Their variables are those of
pytest: PRETRAIN_WRITE_OFFERS=1 writes conformance.yml.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.plugins.device_module import NEEDED

HERE = Path(__file__).parent

pytestmark = [pytest.mark.slow, pytest.mark.ranks, pytest.mark.usefixtures("forked_python")]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables of a process in which the abacus is installed, as its pyproject.toml says."""
    from plugins.fake_site import FakeSite

    site = FakeSite(tmp_path_factory.mktemp("site"))
    site.project(HERE)
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join((str(site.folder), str(HERE.parent)))}


def run(environment, *arguments):
    """Run a module of Python; return the exit code and what was printed."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


TRAININGS = {
    "test_one_rank",
    "test_a_checkpoint_resumes_on_the_cpu",
    "test_a_checkpoint_of_the_cpu_resumes_on_two_tensor_parallel_ranks",
    "test_two_pipeline_stages",
    "test_two_ranks_of_zero_3",
}


@pytest.mark.full
def test_it_passes_the_kit_with_the_losses_of_the_cpu(environment, tmp_path):
    options = f"--noconftest -c {os.devnull} -p no:cacheprovider -p abacus.cpu_forked -rA --tb=short"
    kit = [str(HERE / "conformance.py"), *options.split(), "--basetemp", str(tmp_path)]
    code, shown = run(environment, "pytest", *kit)
    assert code == 0, shown
    passed = set(re.findall(r"^PASSED \S*?::(.*)$", shown, re.MULTILINE))
    trained = {name.partition("::")[2] for name in passed if name.startswith("TestTraining")}
    assert trained == TRAININGS
    assert {f"TestDeviceModule::test_has[{name}]" for name in NEEDED} <= passed
    assert sum(name.startswith("TestCollectives::test_two_ranks[") for name in passed) == 10
    assert "TestOffers::test_are_those_of_the_table" in passed
    assert any(name.startswith("TestNorm::test_agrees_with_float64[abacus-beads") for name in passed), shown


@pytest.mark.full
def test_one_that_cannot_be_trained_on_does_not_pass(environment):
    command = "pretrain.cli.main conformance --backend abacus.lame --kernels-only -k TestDeviceModule"
    code, shown = run(environment, *command.split())
    assert code == 1, shown
    for test in ("test_has[get_rng_state]", "test_a_seed_repeats_what_is_drawn", "test_pinned_memory"):
        assert re.search(rf"^FAILED .*{re.escape(test)}", shown, re.MULTILINE), shown
    assert "torch.abacus.get_rng_state(device) -> Tensor is missing" in shown
