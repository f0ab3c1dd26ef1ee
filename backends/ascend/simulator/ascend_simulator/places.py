"""Folders of the simulator's sources and builds."""

import sys
from pathlib import Path

SOURCES = Path(__file__).parents[1]
BUILD = Path(sys.prefix) / "ascend-simulator"
"""Folder of the builds, in the environment: a library compiled for one release of torch_npu does not fit another."""
LIBRARIES = BUILD / "libraries"
TOOLKIT = BUILD / "toolkit"
"""Empty folders in the place of an installed CANN, whose variables torch_npu and DeepSpeed look for."""
