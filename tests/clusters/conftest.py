"""A cluster of virtual machines, and what the trainings on it share."""

import os
import shutil
import subprocess

import pytest

from clusters.cluster import cluster
from clusters.training import Training
from clusters.virtual_nodes import wait_until
from e2e.conftest import text_tokens  # noqa: F401  a fixture

NEEDED = ("srun", "slurmctld", "slurmd", "munged", "pdsh", "sshd", "mpirun", "ip", "unshare", "nsenter")


@pytest.fixture(scope="session")
def nodes(tmp_path_factory):
    """Four nodes; node0 has Slurm's controller, and is where a user gives commands."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for network namespaces")
    if missing := [program for program in NEEDED if shutil.which(program) is None]:
        pytest.skip(f"needs {', '.join(missing)}; make test-clusters installs them where apt-get is")
    trial = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"]
    tried = subprocess.run(trial, capture_output=True, text=True, timeout=60, check=False)
    if tried.returncode != 0:
        pytest.skip(f"needs namespaces, which this machine does not allow: {tried.stderr.strip()}")
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def training(nodes, text_tokens, tmp_path):  # noqa: F811
    yield from _training(nodes, text_tokens, tmp_path / "training")


@pytest.fixture
def another_training(nodes, text_tokens, tmp_path):  # noqa: F811
    yield from _training(nodes, text_tokens, tmp_path / "another")


def _training(nodes, tokens, folder):
    """Yield a training; what of it is left on the nodes at the end fails the test, and is killed."""
    folder.mkdir()
    made = Training(nodes, tokens, folder)
    yield made
    nodes[0].run("scancel", "--user=root")
    try:
        wait_until(lambda: not made.processes(), lambda: f"left: {made.processes()}", limit=60)
    finally:
        made.kill()
