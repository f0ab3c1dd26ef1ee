"""Ranks of jobs on fake GPUs, one after the other: reads jobs from stdin, one JSON object a line, and answers likewise.

    echo '{"recipe": "gpt3.yml", "rank": 63, "world": 64, "micro_batches": 8}' | python -m fake_gpu.rank

Every job runs in a fork, so that torch and megatron-core are imported once. docs/fake-gpu.md names the keys of a job.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings

from fake_gpu import native

OUT = os.dup(1)
"""Stream of the answers. All other output goes to stderr, such as DeepSpeed's remarks."""


def serve() -> None:
    """Answer every line of stdin."""
    os.dup2(2, 1)
    _import_once()
    _say("ready")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _answer(json.loads(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            _say(json.dumps({"error": f"the rank ended with status {status}"}))


def _import_once() -> None:
    """Import what all jobs share, with the stand-ins in place before anything binds their names."""
    warnings.simplefilter("ignore")
    native.load()
    import torch

    from fake_gpu import attention, modules, stand_ins

    stand_ins.install()
    torch.autograd.set_multithreading_enabled(False)  # its threads would not be in the modes
    attention.install()
    from pretrain.bridge import megatron
    from pretrain.plugins.host.manager import load

    megatron.install(load("cuda").backend)
    modules.install()


def _answer(job: dict) -> None:
    try:
        from fake_gpu.job import run

        answer = run(job)
    except BaseException as error:  # noqa: BLE001  any error is the answer
        answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    _say(json.dumps(answer))


def _say(line: str) -> None:
    os.write(OUT, (line + "\n").encode())


if __name__ == "__main__":
    serve()
