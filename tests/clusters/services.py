"""What runs on the nodes of a cluster: sshd on each, munge, and Slurm with its controller on the first."""

import os
import subprocess

from clusters.virtual_nodes import NUMBERS, address, wait_until

SSH = """
Host *
    User root
    IdentityFile /etc/ssh/key
    IdentitiesOnly yes
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
"""
SSHD = """
HostKey /etc/ssh/key
AuthorizedKeysFile /etc/ssh/key.pub
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
MaxStartups 100
"""
# Low may be preempted by high. A requeued job waits until its credentials expire. Control groups are left alone, as
# a container may not change them.
SLURM = """
ClusterName=pretrain
SlurmctldHost=node0({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=30
StateSaveLocation={folder}/slurm/state
SlurmdSpoolDir={folder}/slurm/spool-%n
SlurmctldPidFile={folder}/slurm/slurmctld.pid
SlurmdPidFile={folder}/slurm/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
KillWait=60
MinJobAge=3600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
SchedulerParameters=bf_interval=2,sched_interval=2,requeue_delay=2
SlurmdParameters=config_overrides
NodeName=node[1-3] CPUs=4 CoresPerSocket=4 Sockets=1 ThreadsPerCore=1 RealMemory=8000 NodeAddr={nodes} State=UNKNOWN
PartitionName=low Nodes=node[1-3] Default=YES PriorityTier=1 GraceTime=120 MaxTime=INFINITE State=UP
PartitionName=high Nodes=node[1-3] PriorityTier=10 PreemptMode=off MaxTime=INFINITE State=UP
"""


def write_files(folder):
    """Write the nodes' /etc/hosts and /etc/ssh, with a key of this cluster alone, and the configuration of Slurm."""
    names = "".join(f"{address(number)} node{number}\n" for number in NUMBERS)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    (folder / "ssh").mkdir()
    (folder / "ssh" / "ssh_config").write_text(SSH)
    (folder / "ssh" / "sshd_config").write_text(SSHD)
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "ssh" / "key"]
    subprocess.run(keygen, check=True, timeout=60)
    (folder / "slurm" / "state").mkdir(parents=True)
    addresses = f"10.77.0.[{10 + NUMBERS[1]}-{10 + NUMBERS[-1]}]"
    written = SLURM.format(folder=folder, controller=address(0), nodes=addresses)
    (folder / "slurm.conf").write_text(written)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)


def start_sshd(node, folder):
    """Let root log in there with the cluster's key."""
    # By its whole path, which sshd requires to execute itself anew.
    node.start("/usr/sbin/sshd", "-D", "-e", log=folder / f"sshd-{node.name}.log")


def start_slurm(nodes, folder):
    """Return when all nodes wait for jobs."""
    munge = ["key-file", "socket", "pid-file", "log-file", "seed-file"]
    files = [f"--{kind}={folder}/munge.{kind.removesuffix('-file')}" for kind in munge]
    nodes[0].start("munged", "--foreground", "--force", *files, log=folder / "munged.log")
    wait_until((folder / "munge.socket").exists, (folder / "munged.log").read_text)
    nodes[0].start("slurmctld", "-D", log=folder / "slurmctld.log")
    for node in nodes[1:]:
        node.start("slurmd", "-D", "-N", node.name, log=folder / f"slurmd-{node.name}.log")
    wait_until(
        lambda: states(nodes[0]) == {"idle"},
        lambda: "".join(path.read_text() for path in sorted(folder.glob("slurm*.log"))),
    )


def states(node):
    """Return the states of Slurm's nodes."""
    words = node.words("sinfo", "-h", "-o", "%T")
    asked = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)  # fails before it is there
    return set(asked.stdout.split())
