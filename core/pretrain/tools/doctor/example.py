"""The recipe that is examined where the user gives none."""

from __future__ import annotations

from pathlib import Path

EXAMPLE = Path(__file__).with_name("example.yml")
"""GPT-2 345M in bf16, for nearly any number of ranks."""

NOTE = (
    "none given: the kernels of GPT-2 345M in bf16 are tried; no token files, tokenizer or checkpoint folder are "
    "looked at"
)
"""What the doctor says of it."""
