"""The device `abacus`: torch's PrivateUse1 device, in Python.

Its tensors are ordinary strided tensors whose storage says "abacus"; the bytes belong to a CPU storage of the same
address (`storage`). Every operator is the CPU's, computed on those bytes (`operators`), every collective is gloo's
(`collectives`). `torch.abacus` (`runtime`) has what docs/hooks.md lists as needed, and nothing of what may be missing:
no streams, no generator of its own, no pinned memory, no tensor classes.
"""

from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from torch_abacus import runtime

_setup_privateuseone_for_python_backend("abacus", backend_module=runtime)

from torch_abacus import collectives, operators, serialization  # noqa: E402  they name the device

for _part in (operators, collectives, serialization):
    _part.register()
