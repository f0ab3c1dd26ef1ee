"""Jobs that a real Slurm stops, at a time limit or for one of higher priority, and the script of the docs requeues."""

import pytest

from clusters.training import ROOT
from clusters.virtual_nodes import wait_until

SIGNAL = " --signal=TERM@300"


@pytest.mark.parametrize("signal", [SIGNAL, ""], ids=["signalled before", "at the limit"])
def test_a_job_with_a_time_limit_is_requeued_and_goes_on(nodes, training, signal):
    job = submit(nodes, training, signal)
    training.reach(5)
    nodes[0].run("scontrol", "update", f"JobId={job}", "TimeLimit=1")  # it has had, or soon has, that minute
    goes_on(nodes, training, job)


def test_a_preempted_job_is_requeued_and_goes_on(nodes, training):
    job = submit(nodes, training)
    training.reach(5)
    nodes[0].run("sbatch", "--partition=high", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=true")
    goes_on(nodes, training, job)


def submit(nodes, training, signal=SIGNAL):
    """Return the number of a job of the script in docs/reliability.md, with this training and one task a node."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    script = page.partition("### Slurm")[2].split("```")[1].removeprefix("sh\n")
    words = " ".join(map(str, training.words("--resume", "auto")))
    for there, here in {
        "--ntasks-per-node=8": "--ntasks-per-node=1",
        SIGNAL: signal,
        "pretrain recipe.yml --backend cuda --run-dir runs/first --resume auto": words,
    }.items():
        assert there in script
        script = script.replace(there, here)
    (training.folder / "job.sh").write_text(script)
    return nodes[0].run("sbatch", "--parsable", "--output=job.txt", "job.sh", cwd=training.folder).strip()


def goes_on(nodes, training, job):
    """The job saves, is started again and goes on until its recipe ends it: then it is complete."""
    wait_until(lambda: state(nodes, job)["Restarts"] == "1", training.printed)
    nodes[0].run("scontrol", "update", f"JobId={job}", "TimeLimit=60")
    stopped = training.saved()
    assert stopped, training.printed()
    assert f"stopped after iteration {stopped}: SIGTERM" in training.printed()
    wait_until(lambda: "resumed from" in training.printed(), training.printed)
    training.reach(stopped + 5)
    training.end()
    wait_until(lambda: state(nodes, job)["JobState"] == "COMPLETED", training.printed)
    assert state(nodes, job)["ExitCode"] == "0:0"


def state(nodes, job):
    """Return what Slurm knows of a job."""
    words = nodes[0].run("scontrol", "--oneliner", "show", "job", job).split()
    return dict(word.split("=", 1) for word in words if "=" in word)
