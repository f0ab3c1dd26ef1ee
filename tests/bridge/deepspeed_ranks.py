"""Two ranks that train on DeepSpeed: `python -m bridge.deepspeed_ranks FOLDER RANK`; each writes FOLDER/RANK.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from bridge import zero
from pretrain.cpu.backend import CpuBackend
from rank_programs import run_ranks

REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
NORMS = {
    **{f"ZeRO-{stage} {dtype}": zero.Case(stage, dtype) for stage in (2, 3) for dtype in ("fp32", "fp16")},
    **{f"ZeRO-{stage} offloaded": zero.Case(stage, "bf16", zero.OFFLOADED) for stage in (2, 3)},
    "no ZeRO": zero.Case(0, "fp16"),
    "BF16_Optimizer": zero.BF16_OPTIMIZER,
}
OVERFLOWS = {f"ZeRO-{stage}": zero.Case(stage, "fp16") for stage in (0, 1, 2, 3)}
LAYOUTS = {f"ZeRO-{stage}": zero.Case(stage) for stage in (1, 3)}


def run(folder):
    """Start both ranks and return what each wrote."""
    run_ranks("bridge.deepspeed_ranks", folder, "{rank}", folder=folder, world_size=2)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


class Hccl(CpuBackend):
    """The CPU with a communication library that does not sum float64."""

    def supports_reduction(self, dtype):
        return dtype != torch.float64


class FlagOnRank1:
    """A sticky overflow flag that rank 1's device raises in the second step."""

    def __init__(self):
        self.flag = torch.zeros(())

    def clear(self):
        self.flag = torch.zeros(())

    def read(self):
        return self.flag

    def raise_in(self, step):
        if step == 1 and dist.get_rank() == 1:
            self.flag = torch.ones(())


def refuse_float64():
    """Let torch.distributed refuse to sum float64, as torch_npu's ProcessGroupHCCL does."""
    for name in REDUCTIONS:
        setattr(dist, name, refusing(name, getattr(dist, name)))


def refusing(name, reduction):
    """Wrap a reduction of torch.distributed."""

    def reduce(*args, **options):
        tensors = [value for value in (*args, *options.values()) if isinstance(value, torch.Tensor)]
        if any(tensor.dtype == torch.float64 for tensor in tensors):
            msg = f"{name}: Unsupported data type at::kDouble"
            raise RuntimeError(msg)
        return reduction(*args, **options)

    return reduce


def main():
    """Train every case as one rank, in one world after the other."""
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    worlds = iter(range(100))

    def in_new_world(train):
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(folder / str(next(worlds))), 2), rank=rank, world_size=2
        )
        try:
            return train()
        finally:
            dist.destroy_process_group()

    def curves(cases, backend, **options):
        return {name: zero.train(case, backend, data=rank, **options) for name, case in cases.items()}

    cpu, hccl = CpuBackend(), Hccl()
    results = {
        "together": in_new_world(lambda: curves(LAYOUTS, cpu)),
        "alone": in_new_world(lambda: curves(LAYOUTS, cpu, mpu=zero.Alone())),
        "together again": in_new_world(lambda: curves(LAYOUTS, cpu)),
        "overflow": in_new_world(lambda: curves(OVERFLOWS, cpu, overflow=FlagOnRank1())),
        "float64": in_new_world(lambda: curves(NORMS, cpu)),
    }
    refuse_float64()
    results["no float64"] = in_new_world(lambda: curves(NORMS, hccl))
    results["refused"] = in_new_world(lambda: refusal(zero.Case(3), cpu))
    (folder / f"{rank}.json").write_text(json.dumps(results))


def refusal(case, backend):
    """Return the error of a training."""
    try:
        zero.train(case, backend, data=dist.get_rank())
    except RuntimeError as error:
        return str(error)
    return None


if __name__ == "__main__":
    main()
