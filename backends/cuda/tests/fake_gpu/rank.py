"""Ranks of jobs on fake GPUs, one after the other: reads jobs from stdin, one JSON object a line, and answers likewise.

    echo '{"recipe": "gpt3.yml", "rank": 63, "world": 64, "micro_batches": 8}' | python -m fake_gpu.rank

Every job runs in a fork, so that torch and megatron-core are imported once. docs/fake-gpu.md names the keys of a job.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
import warnings
from typing import TYPE_CHECKING

from fake_gpu import native

if TYPE_CHECKING:
    from collections.abc import Callable

OUT = os.dup(1)
"""Stream of the answers. All other output goes to stderr, such as DeepSpeed's remarks."""


def serve() -> None:
    """Answer every line of stdin."""
    os.dup2(2, 1)
    run = _import_once()
    _say("ready")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _answer(run, json.loads(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            _say(json.dumps({"error": f"the rank ended with status {status}"}))


def _import_once() -> Callable[[dict], dict]:
    """Import what all jobs share, the stand-ins before anything binds their names; return what runs a job."""
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
    import triton.experimental.gluon.nvidia.hopper  # noqa: F401  imported by the first launch
    from triton.runtime.cache import triton_key

    from fake_gpu import job

    triton_key()  # it reads all of Triton's files, once in a process
    gc.collect()
    gc.freeze()  # else each fork's first collection copies the memory of all that is imported
    return job.run


def _answer(run: Callable[[dict], dict], job: dict) -> None:
    try:
        answer = run(job)
    except BaseException as error:  # noqa: BLE001  any error is the answer
        answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    _say(json.dumps(answer))


def _say(line: str) -> None:
    os.write(OUT, (line + "\n").encode())


if __name__ == "__main__":
    serve()
