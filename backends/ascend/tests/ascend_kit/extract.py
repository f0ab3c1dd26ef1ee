"""Write the schemas of the operators that this backend calls, as torch_npu wheels have them.

    python backends/ascend/tests/ascend_kit/extract.py torch_npu-2.13.0-*.whl torch_npu-2.9.0-*.whl

`pip download --no-deps torch_npu==2.13.0` gets such a wheel. Nothing of it is loaded: the schemas are read from the
strings of its library, where the registration has them as text.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

KEPT = Path(__file__).parents[1] / "schemas"
SOURCE = KEPT.parents[1] / "src" / "pretrain_ascend"
LIBRARY = "torch_npu/lib/libtorch_npu.so"


def called() -> list[str]:
    """Return the names of all operators in calls of `operators.call`."""
    text = "\n".join(path.read_text() for path in sorted(SOURCE.rglob("*.py")))
    return sorted(set(re.findall(r"operators\.call\(\s*\"(\w+)\"", text)))


def schemas(wheel: Path, names: list[str]) -> list[str]:
    """Return one line for each name, such as `npu_swiglu(Tensor self, int dim=-1) -> Tensor`."""
    with zipfile.ZipFile(wheel) as archive:
        library = archive.read(LIBRARY)
    found = []
    for name in names:
        pattern = rb"[\0:]" + name.encode() + rb"\([ -~]*?\) -> [ -~]+(?=\0)"
        lines = {match.lstrip(b"\0:").decode() for match in re.findall(pattern, library)}
        if len(lines) != 1:
            sys.exit(f"{wheel.name}: {len(lines)} schemas of {name}: {sorted(lines)}")
        found.append(lines.pop())
    return found


if __name__ == "__main__":
    for wheel in map(Path, sys.argv[1:]):
        release = wheel.name.split("-")[1]
        KEPT.joinpath(f"torch_npu-{release}.txt").write_text("\n".join(schemas(wheel, called())) + "\n")
