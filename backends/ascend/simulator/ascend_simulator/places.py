"""Where the simulator's sources and what is built of them lie."""

from pathlib import Path

SOURCES = Path(__file__).parents[1]
BUILD = SOURCES / "build"
LIBRARIES = BUILD / "libraries"
TOOLKIT = BUILD / "toolkit"
"""Empty folders in the place of an installed CANN, whose variables torch_npu and DeepSpeed look for."""
