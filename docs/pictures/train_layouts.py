"""Train one recipe in six layouts and keep the losses: `python docs/pictures/train_layouts.py`.

The recipe is recipes/quickstart.yml with a smaller model, in fp32. The layouts are one process, tensor parallelism,
pipeline parallelism, DeepSpeed's ZeRO-1 and ZeRO-3, and tensor parallelism on two simulated NPUs. The last one needs
`backends/ascend/environment` before. The losses of all iterations go to loss_curves.json beside this file, with the
commands and the versions of the libraries; loss_curves.py draws them. All layouts take about ten minutes on two cores.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOSSES = Path(__file__).with_name("loss_curves.json")
RECIPE = "recipes/quickstart.yml"
SMALLER = (
    *("model.hidden_size=128", "model.num_attention_heads=4", "model.seq_length=128", "precision.dtype=fp32"),
    *("train={micro_batch_size: 2, global_batch_size: 8, train_iters: 100}", "schedule.lr_warmup_iters=15"),
    *("checkpoint.save=false", "logging={log_interval: 1, tensorboard: false}", "evaluation.target_loss=null"),
)
TENSOR, PIPELINE = "parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2"
LAYOUTS = {
    "one process": ("cpu", 1, ()),
    "tensor parallel 2": ("cpu", 2, (TENSOR,)),
    "pipeline parallel 2": ("cpu", 2, (PIPELINE,)),
    "ZeRO-1 on 2 ranks": ("cpu", 2, ("engine={name: deepspeed, zero: {stage: 1}}",)),
    "ZeRO-3 on 2 ranks": ("cpu", 2, ("engine={name: deepspeed, zero: {stage: 3}}",)),
    "2 simulated NPUs, tensor parallel": ("ascend", 2, (TENSOR,)),
}
"""Name in the picture -> backend, ranks, overrides."""
PYTHONS = {"cpu": Path(sys.executable), "ascend": ROOT / ".venv-ascend/bin/python"}


def command(name: str) -> list[str]:
    """Return the arguments of `pretrain` for a layout, without the run directory."""
    backend, ranks, overrides = LAYOUTS[name]
    settings = [word for setting in (*SMALLER, *overrides) for word in ("--set", setting)]
    return ["--backend", backend, RECIPE, "--nproc", str(ranks), *settings]


def train(name: str, run_dir: Path) -> list[float]:
    """Train in a layout and return the loss of every iteration."""
    python = PYTHONS[LAYOUTS[name][0]]
    if not python.exists():
        msg = f"{python} is missing: call backends/ascend/environment first."
        raise SystemExit(msg)
    arguments = [str(python), "-m", "pretrain.cli.main", *command(name), "--run-dir", str(run_dir)]
    subprocess.run(arguments, cwd=ROOT, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [record["lm_loss"] for record in records if record["kind"] == "train"]


def versions() -> dict[str, str]:
    """Return the versions of the libraries that computed the losses."""
    ask = "from importlib.metadata import version; print(version('torch_npu'))"
    torch_npu = subprocess.run([str(PYTHONS["ascend"]), "-c", ask], check=True, capture_output=True, text=True).stdout
    return {**{name: version(name) for name in ("torch", "megatron-core", "deepspeed")}, "torch_npu": torch_npu.strip()}


def main() -> None:
    """Train in every layout and write the losses."""
    with tempfile.TemporaryDirectory() as folder:
        losses = {name: train(name, Path(folder) / str(number)) for number, name in enumerate(LAYOUTS)}
    commands = {name: shlex.join(["pretrain", *command(name)]) for name in LAYOUTS}
    kept = {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions(),
        "commands": commands,
        "losses": losses,
    }
    LOSSES.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
