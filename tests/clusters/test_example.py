"""The script in examples/slurm, submitted as it stands: at its time limit it is requeued, until its recipe is done."""

import json
import os

from clusters.test_requeue import goes_on
from clusters.training import PRETRAIN, ROOT


def test_the_example_is_requeued_and_its_losses_are_those_of_one_piece(nodes, training):
    script = ROOT / "examples" / "slurm" / "train.sbatch"
    path = f"PATH={PRETRAIN.parent}:{os.environ['PATH']}"
    submit = ["env", path, "sbatch", "--parsable", "--nodes=2", "--output=job.txt", script]
    options = [training.recipe, "--backend", "cpu", "--nproc", "1", "--run-dir", training.run_dir]
    job = nodes[0].run(*submit, *options, cwd=training.folder).strip()
    training.reach(5)
    nodes[0].run("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    goes_on(nodes, training, job)
    in_parts = losses(training.run_dir)
    alone = training.folder / "alone"
    end = ["--set", f"train.exit_interval={len(in_parts)}", "--set", "train.kill_switch_path=null"]
    words = [PRETRAIN, "--backend", "cpu", training.recipe, "--run-dir", alone, "--nproc", "2", *end]
    run = training.start(nodes[1], *words, log="alone.txt")
    assert run.code() == 0, run.printed()
    assert losses(alone) == in_parts


def losses(run_dir):
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [record["lm_loss"] for record in records if record["kind"] == "train"]
