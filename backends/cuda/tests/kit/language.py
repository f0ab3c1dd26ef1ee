"""Triton's language as its interpreter finds it: patched for as long as a kernel runs, whole before and after.

triton 3.6.0 runtime/interpreter.py patches `triton.language` in GridExecutor.__call__ and takes the patches back there;
a device function (tl.max, tl.sum) patches again in InterpretedFunction.__call__ and takes nothing back.
What is imported while patches are in force may keep them, and two copies of the language do not know each other's
tensors: "cannot convert ... of type <class 'triton.language.core.tensor'> to tensor", in every later test.
"""

from __future__ import annotations

import sys

# Triton's specialization of arguments imports it in the midst of the first kernel, when the language is patched.
import triton.experimental.gluon.nvidia.hopper  # noqa: F401
import triton.language as tl
from triton.language.semantic import TritonSemantic

PATCHED = (tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base)
WHOLE = [(place, dict(vars(place))) for place in PATCHED]


def restore() -> list[str]:
    """Undo the patches, and return their names."""
    found = []
    for place, whole in WHOLE:
        for name in {*vars(place), *whole}:
            now, before = vars(place).get(name), whole.get(name)
            if now is before:
                continue
            found.append(f"{place.__name__}.{name}")
            if name in whole:
                setattr(place, name, before)
            else:
                delattr(place, name)
    return sorted(found)


def copies() -> list[str]:
    """Return the signs of a second copy of the language; empty if there is only one."""
    tensors = {
        "triton.language": sys.modules["triton.language"].tensor,
        "triton.language.core": sys.modules["triton.language.core"].tensor,
        "triton.language.semantic": sys.modules["triton.language.semantic"].TritonSemantic.tensor,
        "TritonSemantic": TritonSemantic.tensor,
    }
    return [name for name, tensor in tensors.items() if tensor is not tl.tensor]
