"""One of two ranks: collectives of the real ProcessGroupHCCL over the simulated HCCL. Reports its results."""

import ctypes
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch_npu

from ascend_simulator.places import LIBRARIES
from pretrain_ascend.collectives import options_of
from simulator_kit.programs import tell

rank = int(os.environ["RANK"])
torch.npu.set_device(rank)
dist.init_process_group("hccl")
found = {}


def refused(call):
    """Return the error's message, "" without an error."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def filled(value, size=4, dtype=torch.float32):
    return torch.full((size,), value, device="npu", dtype=dtype)


x = filled(rank + 1.0)
work = dist.all_reduce(x, async_op=True)
found["before wait"] = x.tolist()
work.wait()
found["after wait"] = x.tolist()

x = filled(rank + 1.0)
work = dist.all_reduce(x, async_op=True)
used = (x * 10).tolist()  # a kernel on a stream that does not wait
work.wait()
found["used before wait"], found["used after wait"] = used, (x * 10).tolist()

for name, operation in {"max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "product": dist.ReduceOp.PRODUCT}.items():
    dist.all_reduce(x := filled(rank + 2.0), operation)
    found[name] = x.tolist()
for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8):
    dist.all_reduce(x := filled(rank + 1, dtype=dtype))
    found[str(dtype)] = x.tolist()

parts = [filled(0.0, 2), filled(0.0, 2)]
dist.all_gather(parts, filled(float(rank), 2))
found["all_gather"] = [part.tolist() for part in parts]
dist.reduce_scatter_tensor(x := filled(0.0, 2), torch.arange(4.0, device="npu"))
found["reduce_scatter"] = x.tolist()
dist.broadcast(x := filled(float(rank), 2), 1)
found["broadcast"] = x.tolist()
dist.all_to_all_single(x := filled(0.0, 2), torch.arange(2.0, device="npu") + 10 * rank)
found["all_to_all"] = x.tolist()
dist.all_gather_object(objects := [None, None], {"from": rank})
found["objects"] = objects
x = filled(0.0, 2)
pair = [dist.P2POp(dist.isend, filled(rank + 5.0, 2), 1 - rank), dist.P2POp(dist.irecv, x, 1 - rank)]
for work in dist.batch_isend_irecv(pair):
    work.wait()
found["batch"] = x.tolist()
for value in (1.0, 2.0, 3.0):  # messages to one peer arrive in their order
    dist.send(filled(value, 1), 1) if rank == 0 else dist.recv(x := filled(0.0, 1), 0)
    found.setdefault("messages", []).append(value if rank == 0 else x.item())

found["float64"] = refused(lambda: dist.all_reduce(filled(1.0, dtype=torch.float64)))
found["int8 product on hccl"] = refused(lambda: dist.all_reduce(filled(1, dtype=torch.int8), dist.ReduceOp.PRODUCT))
found["bf16 product"] = refused(lambda: dist.all_reduce(filled(1.0, dtype=torch.bfloat16), dist.ReduceOp.PRODUCT))

hccl = ctypes.CDLL(str(LIBRARIES / "libhccl.so"))
for group in ("tp", "mp", "dp"):
    options = options_of({"tp": 48, "mp": 16}, group)
    made = dist.new_group(pg_options=options)
    dist.all_reduce(filled(1.0), group=made)
    found[f"buffer of {group}"] = hccl.simulator_buffer_mb() if options else None
    dist.destroy_process_group(made)
asked = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options()
asked.is_high_priority_stream = True
dist.new_group(pg_options=asked)
found["priority after it was asked for"] = asked.is_high_priority_stream

folder = Path(os.environ["ASCEND_SIMULATOR_FOLDER"])
dist.barrier()
before = set(folder.iterdir())
dist.barrier()
for _ in range(20):  # a rank that has finished must not free what the other has not read
    group = dist.new_group()
    dist.all_reduce(filled(1.0), group=group)
    dist.destroy_process_group(group)
del group  # in 2.9.0 it has its communicator until then
dist.barrier()
found["folders left"] = len(set(folder.iterdir()) - before)
dist.barrier()  # the other rank counts before the next group is made

other = dist.new_group()  # the group does not survive this
mismatch = filled(1.0, 4 + rank)
found["mismatch"] = refused(lambda: (dist.all_reduce(mismatch, group=other), torch.npu.current_stream().synchronize()))
tell(found)
os._exit(0)  # the failed group would be reported once more
