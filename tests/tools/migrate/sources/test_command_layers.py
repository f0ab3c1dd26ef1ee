"""Layers around a program are taken off, and its processes counted; a count that is not certain stays unknown."""

from __future__ import annotations

import pytest

from pretrain.tools.migrate.setting import SourceLine, Word
from pretrain.tools.migrate.sources.command_layers import peel
from pretrain.tools.migrate.sources.script import split_words

GPT = "pretrain_gpt.py --num-layers 2"


def peeled(text, batch=None):
    return peel(split_words("a.sh", text, {}), batch or {})


@pytest.mark.parametrize(
    "layers",
    [
        "",
        "python",
        "python3.10 -u -W ignore",
        "/usr/bin/python3 -um torch.distributed.launch",
        "python -mtorch.distributed.run",
        "exec nohup env A=1 -u B nice -n 3 python",
        "time numactl --cpunodebind=0 --membind 0 torchrun",
        "CONDA=1 conda run -n env python",
        "timeout 3h torchrun --rdzv_id x --rdzv-backend=c10d -r 3 -t 3",
        "singularity exec --nv -B data:data image.sif python",
        "docker run --rm -v a:b image torchrun --",
        "srun -l --mpi=pmix -J job -u deepspeed --no_local_rank --master_port 1",
        "mpirun --allow-run-as-root -mca btl tcp,self -x A=1 -bind-to none python",
        "deepspeed --hostfile hosts --launcher openmpi --launcher_args '-x A'",
        "nsys profile -o report --trace cuda,nvtx python",
    ],
)
def test_only_the_program_and_its_arguments_are_left(layers):
    found = peeled(f"{layers} {GPT}".replace("CONDA=1 ", ""))
    assert (found.program, [word.text for word in found.words]) == ("pretrain_gpt.py", GPT.split())
    assert found.notices == ()


@pytest.mark.parametrize(
    ("layers", "nproc", "nnodes"),
    [
        ("torchrun", 1, 1),
        ("torchrun --nproc_per_node 8 --nnodes=4", 8, 4),
        ("torchrun --nproc-per-node=8 --nnodes 4:4", 8, 4),
        ("torchrun --nproc 8 --standalone", 8, 1),
        ("torchrun --nproc_per_node gpu", None, 1),
        ("torchrun --nproc_per_node $N", None, 1),
        ("torchrun --nnodes 1:4", 1, None),
        ("torchrun $OPTIONS --nnodes 2", None, None),
        ("srun -N 2 torchrun --nproc_per_node 8 $OPTIONS", None, 2),
        ("python -m torch.distributed.launch --nproc_per_node 2 --nproc_per_node 4", 4, 1),
        ("deepspeed", None, 1),
        ("deepspeed --num_gpus 4", 4, 1),
        ("deepspeed --num_nodes 2 --num_gpus 4", 4, 2),
        ("deepspeed --hostfile hosts --num_gpus 4", 4, None),
        ("deepspeed --hostfile hosts --num_gpus 4 --num_nodes 2", 4, 2),
        ("deepspeed -i worker-0:0,1,2,3", 4, 1),
        ("deepspeed --include=a:0,1@b:2,3", 2, 2),
        ("deepspeed --include a@b", None, 2),
        ("deepspeed --include a:0@b:0,1", None, 2),
        ("deepspeed --exclude a:0", None, None),
        ("srun -N 4 --ntasks-per-node 8 python", 8, 4),
        ("srun -N4 -n32 python", 8, 4),
        ("srun --nodes=2-2 python", 1, 2),
        ("srun --nodes=2-4 --ntasks-per-node=8 python", 8, None),
        ("srun -n 32 python", None, None),
        ("srun python", None, None),
        ("srun -N 4 torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES", 8, 4),
        ("mpirun -np 8 python", 8, 1),
        ("mpirun -np 16 --hostfile hosts python", None, None),
        ("mpirun -np 16 --npernode 8 --hostfile hosts python", 8, 2),
        ("mpirun -np 16 --map-by ppr:8:node python", 8, 2),
        ("mpiexec -n 16 -H a:8,b:8 python", 8, 2),
        ("mpirun -np 12 -H a:8,b:8 python", None, None),
    ],
)
def test_processes_are_counted(layers, nproc, nnodes):
    launch = peeled(f"{layers} {GPT}").launch
    assert (launch.nproc, launch.nnodes) == (nproc, nnodes)


def test_a_file_of_hosts_is_kept():
    assert peeled(f"deepspeed -H hosts {GPT}").launch.hostfile == "hosts"


def test_python_alone_says_nothing_about_processes():
    assert peeled(f"python {GPT}").launch is None


def test_the_job_has_defaults_for_srun():
    batch = {"nodes": Word("4", SourceLine("a.sh", 2)), "ntasks_per_node": Word("8", SourceLine("a.sh", 3))}
    launch = peeled(f"srun -N 2 python {GPT}", batch).launch
    assert (launch.nproc, launch.nnodes) == (8, 2)


@pytest.mark.parametrize(
    ("layers", "notice"),
    [
        ("$LAUNCHER --x 3", "a.sh:1: $LAUNCHER is not a known launcher; its options are ignored"),
        ("$PYTHON -u", "a.sh:1: $PYTHON is not a known launcher; its options are ignored"),
        ("./with_env.sh", "a.sh:1: with_env.sh is not a known launcher; its options are ignored"),
        ("torchrun --new 3", "a.sh:1: --new is not a known option of the launcher; it is ignored"),
        (
            "torchrun --nproc_per_node=$N",
            "a.sh:1: the number of processes that nproc_per_node gives is not known: give --define N=...",
        ),
        ("torchrun $OPTIONS", "a.sh:1: the launcher's options are not known: give --define OPTIONS=..."),
        ("torchrun --nnodes 1:4", "a.sh:1: the number of nodes is not one number: 1:4"),
    ],
)
def test_a_notice_says_what_is_not_read(layers, notice):
    found = peeled(f"{layers} {GPT}")
    assert found.program == "pretrain_gpt.py"
    assert found.notices == (notice,)


def test_a_known_launcher_after_an_unknown_word_is_read():
    launch = peeled(f"$PYTHON -u -m torch.distributed.launch --nproc_per_node 4 {GPT}").launch
    assert (launch.nproc, launch.nnodes) == (4, 1)


@pytest.mark.parametrize(
    "command",
    ["echo python pretrain_gpt.py", "printf torchrun pretrain_gpt.py", "cp pretrain_gpt.py x", "pkill -f x.py"],
)
def test_other_commands_start_no_program(command):
    assert peeled(command) is None


@pytest.mark.parametrize(
    "command", ["bash run.sh", "python -c 'import a'", "ls", "srun bash -c 'python pretrain_gpt.py'"]
)
def test_what_starts_no_python_program_is_told_by_its_name(command):
    assert not peeled(command) or not peeled(command).program.endswith(".py")


def test_a_module_is_a_program():
    assert peeled("torchrun -m megatron.pretrain_gpt --x").program == "megatron/pretrain_gpt.py"
    assert peeled("python -m pretrain_gpt").program == "pretrain_gpt.py"
