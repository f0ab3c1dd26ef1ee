"""Options of NCCL's groups are for names that megatron-core asks by."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from pretrain_cuda import collectives


def test_every_name_of_high_priority_is_one_that_megatron_core_asks_by():
    source = Path(find_spec("megatron.core.parallel_state").origin).read_text(encoding="utf-8")
    asked = set(re.findall(r'get_nccl_options\(\s*"(\w+)"', source))
    assert {"tp", "dp_cp", "pp"} <= asked
    assert asked >= collectives.HIGH_PRIORITY


def test_other_groups_have_none():
    assert collectives.options_of("dp_cp") is None
