"""`pretrain checkpoint convert SOURCE TARGET --to huggingface`, which writes its seconds of converting into a file.

python convert_timed.py SOURCE TARGET FILE
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch._dynamo.config  # noqa: F401  what torch's fake tensors import when they are first used

from pretrain.cli.main import main
from pretrain.tools.convert import conversion as module

_convert = module.convert


def timed(*arguments, **options):
    start = time.perf_counter()
    result = _convert(*arguments, **options)
    Path(sys.argv[3]).write_text(str(time.perf_counter() - start))
    return result


module.convert = timed
main(["checkpoint", "convert", sys.argv[1], sys.argv[2], "--to", "huggingface"])
