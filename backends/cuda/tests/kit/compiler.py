"""Calls functions that compile Triton's kernels, one after the other: reads them from stdin, and answers with JSON.

echo '{"module": "kit.offline_triangle", "function": "loads", "arguments": [90]}' | python -m kit.compiler
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module


def serve() -> None:
    """Answer every line of stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(**json.loads(line))), file=answers, flush=True)


def _answer(module: str, function: str, arguments: list) -> dict[str, object]:
    try:
        return {"result": getattr(import_module(module), function)(*arguments)}
    except Exception:  # noqa: BLE001  any error is the answer
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    serve()
