"""Options of launchers: those with a value, those without, and the ones that count processes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pretrain.tools.migrate.sources.files import Launch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pretrain.tools.migrate.setting import SourceLine, Word

    Count = Callable[[Mapping[str, Word], SourceLine], Launch]


@dataclass(frozen=True, slots=True)
class Launcher:
    """Options of one launcher, without their dashes and with underscores."""

    count: Count  # makes a Launch of the options that were given
    valued: frozenset[str]  # options with a value
    switches: frozenset[str]  # options without one
    paired: frozenset[str] = frozenset()  # options with two values
    same: Mapping[str, str] = field(default_factory=dict)  # usual name of an option by its other names


def names(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


def _number(options: Mapping[str, Word], name: str) -> int | None:
    """Return the number that an option gives; None for another text, such as "gpu"."""
    text = _text(options, name)
    return int(text) if text.isdecimal() else None


def _range(options: Mapping[str, Word], name: str) -> int | None:
    """Return a number of nodes, which may be written 4, 4:4 or 4-4; None for a real range."""
    least, _, most = _text(options, name).replace("-", ":").partition(":")
    return int(least) if least.isdecimal() and (most or least) == least else None


def _text(options: Mapping[str, Word], name: str) -> str:
    return options[name].text if name in options and not options[name].asked else ""


def _torchrun(options: Mapping[str, Word], place: SourceLine) -> Launch:
    """Without options, torchrun starts one process on one node."""
    nproc = _number(options, "nproc_per_node") if "nproc_per_node" in options else 1
    nnodes = 1 if "standalone" in options or "nnodes" not in options else _range(options, "nnodes")
    return Launch(place, nproc, nnodes)


def _deepspeed(options: Mapping[str, Word], place: SourceLine) -> Launch:
    """Without a count, DeepSpeed takes all devices of a node; without a list of hosts, this node."""
    hostfile = _text(options, "hostfile")
    if "include" in options:
        nproc, nnodes = _included(_text(options, "include"))
        return Launch(place, nproc, nnodes, hostfile)
    if "exclude" in options:
        return Launch(place, hostfile=hostfile)
    nnodes = _number(options, "num_nodes") if options.keys() & {"hostfile", "num_nodes"} else 1
    return Launch(place, _number(options, "num_gpus"), nnodes, hostfile)


def _included(text: str) -> tuple[int | None, int | None]:
    """Return processes of a node, and nodes, of "worker-0@worker-1:0,2" (DeepSpeed's `parse_resource_filter`)."""
    hosts = text.split("@")
    if not all(hosts):
        return None, None
    slots = {len(host.partition(":")[2].split(",")) if ":" in host else None for host in hosts}
    return (slots.pop() if len(slots) == 1 else None), len(hosts)


def _srun(options: Mapping[str, Word], place: SourceLine) -> Launch:
    """Without -n and --ntasks-per-node, Slurm starts one task on each node; sbatch's own options may say the nodes."""
    nnodes, tasks, nproc = _range(options, "nodes"), _number(options, "ntasks"), _number(options, "ntasks_per_node")
    if tasks and nnodes:
        return Launch(place, None if tasks % nnodes else tasks // nnodes, nnodes)
    if tasks and nproc and "nodes" not in options and tasks % nproc == 0:
        return Launch(place, nproc, tasks // nproc)
    if nnodes and not options.keys() & {"ntasks", "ntasks_per_node", "gpus_per_task", "ntasks_per_gpu"}:
        nproc = 1
    return Launch(place, nproc, nnodes)


def _mpirun(options: Mapping[str, Word], place: SourceLine) -> Launch:
    """Without hosts, mpirun starts all processes on this node."""
    tasks = _number(options, "np")
    mapped = re.fullmatch(r"ppr:(\d+):node\b.*", _text(options, "map_by"))
    nproc = _number(options, "npernode") or (int(mapped[1]) if mapped else None)
    slots = [host.partition(":")[2] for host in _text(options, "host").split(",") if host]  # of "a:8,b:8", or of "a,b"
    hosts = [int(count) if count.isdecimal() else 1 for count in slots]
    hostfile = _text(options, "hostfile")
    if tasks is None:
        return Launch(place, nproc, len(hosts) or None, hostfile)
    if nproc and tasks % nproc == 0:
        return Launch(place, nproc, tasks // nproc, hostfile)
    if hosts and sum(hosts) == tasks and len(set(hosts)) == 1:
        return Launch(place, hosts[0], len(hosts), hostfile)
    elsewhere = options.keys() & {"host", "hostfile", "npernode", "map_by"}
    return Launch(place, hostfile=hostfile) if elsewhere else Launch(place, tasks, 1)


TORCHRUN = Launcher(
    _torchrun,
    names(
        "nproc_per_node nnodes node_rank master_addr master_port local_addr rdzv_backend rdzv_endpoint rdzv_id"
        " rdzv_conf max_restarts monitor_interval start_method role log_dir logdir r redirects t tee local_ranks_filter"
        " event_log_handler logs_specs numa_binding signals_to_handle duplicate_stdout_filters"
        " duplicate_stderr_filters shutdown_timeout"
    ),
    names("standalone m module no_python run_path use_env virtual_local_rank"),
)
DEEPSPEED = Launcher(
    _deepspeed,
    names(
        "H hostfile i include e exclude num_nodes num_gpus num_accelerators min_elastic_nodes max_elastic_nodes"
        " master_port master_addr node_rank launcher launcher_args autotuning ssh_port venv_script bind_core_list"
        " enable_each_rank_log log_level"
    ),
    names(
        "module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid elastic_training bind_cores_to_rank"
        " q quiet"
    ),
    same={"H": "hostfile", "i": "include", "e": "exclude", "num_accelerators": "num_gpus"},
)
SRUN = Launcher(
    _srun,
    names(
        "N nodes n ntasks ntasks_per_node ntasks_per_gpu ntasks_per_socket gpus_per_node gpus_per_task G gpus gres c"
        " cpus_per_task A account p partition q qos J job_name o output e error i input t time w nodelist x exclude"
        " jobid D chdir mem mem_per_cpu mem_per_gpu mem_bind cpu_bind gpu_bind distribution m constraint C reservation"
        " mpi export mail_type mail_user dependency container_image container_mounts container_name"
        " container_workdir container_env het_group threads_per_core signal comment wait W open_mode"
    ),
    names(
        "l label u unbuffered K kill_on_bad_exit exclusive overlap v verbose Q quiet O overcommit pty s oversubscribe"
        " container_mount_home no_container_mount_home container_writable container_remap_root requeue no_requeue"
        " exact whole"
    ),
    same={"N": "nodes", "n": "ntasks"},
)
MPIRUN = Launcher(
    _mpirun,
    names(
        "np n c npernode N ppn perhost map_by rank_by bind_to H host hosts hostfile machinefile f x prefix wdir wd"
        " envlist genvlist output_filename launcher iface path timeout"
    ),
    names(
        "allow_run_as_root tag_output oversubscribe nooversubscribe report_bindings display_map display_allocation"
        " bind_to_core q quiet v verbose nolocal use_hwthread_cpus merge_stderr_to_stdout genvall l"
        " prepend_rank bynode byslot"
    ),
    names("mca gmca genv env"),
    {
        **dict.fromkeys(("n", "c"), "np"),
        **dict.fromkeys(("N", "ppn", "perhost"), "npernode"),
        **dict.fromkeys(("H", "hosts"), "host"),
        **dict.fromkeys(("machinefile", "f"), "hostfile"),
    },
)
