"""Where the simulator's sources and what is built of them lie."""

import sys
from pathlib import Path

SOURCES = Path(__file__).parents[1]
BUILD = Path(sys.prefix) / "ascend-simulator"
"""In the environment: what is compiled for one release of torch_npu does not fit another."""
LIBRARIES = BUILD / "libraries"
TOOLKIT = BUILD / "toolkit"
"""Empty folders in the place of an installed CANN, whose variables torch_npu and DeepSpeed look for."""
