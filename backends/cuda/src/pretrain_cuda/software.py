"""Software that an NVIDIA GPU needs, and the GPU's health: by nvidia-smi, which opens no device context."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.plugins import installed
from pretrain.plugins.backend import Remark

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""Major version of CUDA -> first release of the driver that serves it (NVIDIA, "CUDA Compatibility", minor version
compatibility)."""

PACKAGES = {"triton": "triton", "flash-attn": "flash_attn", "apex": "apex", "transformer-engine": "transformer_engine"}
"""Distribution -> module of the libraries with kernels that the backend offers."""

SLOWED = ("hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
"""Reasons for slower clocks that are faults of cooling or of power; others, such as an idle GPU, are none."""

GROUPS = ("clocks_event_reasons", "clocks_throttle_reasons")
"""Names of these reasons in nvidia-smi: from driver 535 on, and before."""

STATE = ("uuid", "index", "power.limit", "power.default_limit", "ecc.errors.uncorrected.volatile.total")


@dataclass(frozen=True, slots=True)
class Card:
    """One line of nvidia-smi."""

    name: str
    driver: str


def has_driver() -> bool:
    """Return whether the driver's library can be loaded."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@functools.cache
def cards() -> tuple[Card, ...]:
    """Return every card of this machine, whether or not CUDA_VISIBLE_DEVICES shows it; none without nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    pairs = [line.rpartition(",") for line in answer.stdout.splitlines() if "," in line]
    return tuple(Card(name.strip(), driver.strip()) for name, _, driver in pairs)


def health(cuda: str | None, uuid: str) -> Iterator[Remark]:
    """Yield remarks about driver, libraries and GPUs.

    Args:
        cuda: the version that torch is built for; None: without CUDA.
        uuid: of the current GPU, as torch gives it; "": all GPUs of the machine are judged.
    """
    if cuda is not None and cards():
        yield driver_remark(cuda, cards()[0].driver, is_used=bool(uuid))
    yield from _libraries()
    for state in gpu_states():
        if uuid in state["uuid"]:
            yield from gpu_remarks(state)


def driver_remark(cuda: str, driver: str, *, is_used: bool) -> Remark:
    """Return whether a driver serves a version of CUDA.

    Args:
        cuda: that torch is built for, "12.8".
        driver: "570.86.15".
        is_used: whether a GPU is in use with both: NVIDIA's package cuda-compat lets some older drivers serve it.
    """
    text = f"driver {driver}, torch built for CUDA {cuda}"
    least, release = LEAST_DRIVER.get(int(cuda.partition(".")[0])), driver.partition(".")[0]
    if least is None or not release.isdigit() or int(release) >= least:
        return Remark(subject="driver", verdict="ok", text=text)
    remedy = f"Install driver {least} or later, or a torch that is built for an older CUDA."
    if is_used:
        text += f", which needs driver {least} or later, or cuda-compat; the GPU works"
        return Remark(subject="driver", verdict="look", text=text, remedy=remedy)
    return Remark(subject="driver", verdict="wrong", text=f"{text}, which needs driver {least} or later", remedy=remedy)


def _libraries() -> Iterator[Remark]:
    """Yield the libraries with kernels, and those that are installed and cannot be imported."""
    present = [name for name, module in PACKAGES.items() if installed.has(module)]
    for name in present:
        if failure := installed.import_failure(PACKAGES[name]):
            text = f"{installed.provider(name)} cannot be imported, and its kernels are declined: {failure}"
            remedy = f"Build it for this torch: pip install --no-build-isolation --force-reinstall --no-deps {name}"
            yield Remark(subject="libraries", verdict="look", text=text, remedy=remedy)
    absent = [name for name in PACKAGES if name not in present]
    listed = ", ".join(installed.provider(name) for name in present) or "none"
    text = f"{listed}{'; not installed: ' if absent else ''}{', '.join(absent)}"
    yield Remark(subject="libraries", verdict="ok", text=text)


def gpu_states() -> list[dict[str, str]]:
    """Return what nvidia-smi says of every GPU by the names of `STATE` and `SLOWED`; none where it does not answer."""
    program = shutil.which("nvidia-smi")
    for group in GROUPS if program else ():
        fields = [*STATE, *(f"{group}.{reason}" for reason in SLOWED)]
        command = [str(program), f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        rows = [[part.strip() for part in line.split(",")] for line in answer.stdout.splitlines() if line.strip()]
        return [dict(zip((*STATE, *SLOWED), row, strict=False)) for row in rows if len(row) == len(fields)]
    return []


def gpu_remarks(state: dict[str, str]) -> Iterator[Remark]:
    """Yield a remark for each fault of a GPU, or one where it has none; `state` is one of `gpu_states`."""
    name, faults = f"GPU {state['index']}", []
    errors = state["ecc.errors.uncorrected.volatile.total"]
    if errors.isdigit() and int(errors):
        text = f"{name} has had {errors} uncorrected memory errors since the driver was loaded"
        faults.append(Remark(subject="memory errors", verdict="wrong", text=text, remedy="Reset or replace the GPU."))
    if reasons := [reason for reason in SLOWED if state[reason] == "Active"]:
        text = f"{name} is slowed down: {', '.join(reasons)}"
        faults.append(Remark(subject="clocks", verdict="look", text=text, remedy="Look at cooling and power supply."))
    limit, usual = _watts(state["power.limit"]), _watts(state["power.default_limit"])
    if limit < usual:
        text = f"{name} is limited to {limit:.0f} W, its default is {usual:.0f} W"
        remedy = f"nvidia-smi -i {state['index']} -pl {usual:.0f}, as root."
        faults.append(Remark(subject="clocks", verdict="look", text=text, remedy=remedy))
    yield from faults or [Remark(subject="health", verdict="ok", text="no memory errors, no slowed clocks")]


def _watts(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return 0.0
