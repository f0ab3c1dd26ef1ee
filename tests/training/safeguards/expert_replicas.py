"""Two ranks with equal experts, of which one changes a weight: `python -m training.safeguards.expert_replicas DIR`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace


def main() -> None:
    """Write what rank 0 finds before and after rank 1 has another expert."""
    from pretrain.bridge import megatron
    from pretrain.cpu.backend import CpuBackend

    megatron.install(CpuBackend())
    import torch

    from engine import tiny
    from engine.expert_layouts import MIXTRAL, TP_SP, WHOLE
    from pretrain.engine import groups
    from pretrain.training.progress import Progress
    from pretrain.training.safeguards.replicas import ReplicaCheck

    rank, found = int(os.environ["RANK"]), []
    groups.join_world(CpuBackend(), rank, 2, timeout_minutes=10)
    with tiny.engine_of(tiny.tiny(*MIXTRAL, *TP_SP, *WHOLE, "model.num_layers=2")) as engine:
        training = SimpleNamespace(engine=engine, progress=Progress(), meter=SimpleNamespace(interval=None))
        check = ReplicaCheck(training, (groups.data_parallel_group(), groups.expert_data_parallel_group()), 1, None)
        found.append(check._difference())
        if rank == 1:
            with torch.no_grad():
                dict(engine.models[0].named_parameters())["decoder.layers.1.mlp.experts.linear_fc2.weight"][
                    3, 0, 0
                ] += 1
        found.append(check._difference())
    if rank == 0:
        (Path(sys.argv[1]) / "found.json").write_text(json.dumps(found))
    groups.leave()


if __name__ == "__main__":
    main()
