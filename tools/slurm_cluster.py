"""A real Slurm on this machine, for tests: one node with two pretend GPUs, a low partition that a high one preempts.

It needs root and Debian's packages: `apt-get install slurmctld slurmd slurm-client munge`. There is no systemd,
database or cgroup in it, and all its files are in one folder.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
_READY_S = 60.0
_SOON_S = 4
_CONF = """ClusterName=tintype
SlurmctldHost={host}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={host} CPUs=4 Gres=gpu:2 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes={host} PriorityTier=10 PreemptMode=OFF
"""


def why_not() -> str:
    """Return why a cluster cannot run here; empty if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found; apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "it needs root"


class Cluster:
    """A running Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def ask(self, *command: str) -> str:
        """Run a command of Slurm and return what it printed."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def begin_again(self) -> None:
        """Let jobs that were put back into the queue begin in a few seconds; Slurm lets them wait for two minutes.

        In the same second a job is refused for good, since its credential was just revoked.
        """
        late = datetime.now() + timedelta(seconds=2 * _SOON_S)
        for line in set(self.ask("squeue", "-h", "-t", "PD", "-o", "%F %S").splitlines()):
            job, start = line.split()
            if start != "N/A" and datetime.fromisoformat(start) > late:
                with suppress(subprocess.CalledProcessError):  # it has just begun
                    self.ask("scontrol", "update", f"JobId={job}", f"StartTime=now+{_SOON_S}")


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start a Slurm whose files are in an empty folder, and stop it."""
    host = platform.node().partition(".")[0]
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    gpus = [folder / f"gpu{index}" for index in range(2)]
    for index, gpu in enumerate(gpus):
        os.mknod(gpu, stat.S_IFCHR | 0o666, os.makedev(195, index))
    (folder / "slurm.conf").write_text(_CONF.format(host=host, folder=folder))
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={folder}/gpu[0-1] Flags=nvidia_gpu_env\n")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    places = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={folder}/munge.{name}" for option, name in places.items()]
    made = Cluster(folder)
    try:
        _start(["munged", "--force", *options], made)
        _start(["slurmctld", "-f", str(folder / "slurm.conf")], made)
        _start(["slurmd", "-f", str(folder / "slurm.conf"), "-N", host], made)
        deadline_s = time.monotonic() + _READY_S
        while "idle" not in _state(made) and time.monotonic() < deadline_s:
            time.sleep(0.5)
        yield made
    finally:
        with suppress(subprocess.CalledProcessError):
            made.ask("scancel", "--user=root", "--full")
        for name in ("slurmd.pid", "slurmctld.pid", "munge.pid"):
            _stop(folder / name)


def _state(made: Cluster) -> str:
    with suppress(subprocess.CalledProcessError):  # the controller is starting
        return made.ask("sinfo", "-h", "-o", "%t")
    return ""


def _start(command: Sequence[str], made: Cluster) -> None:
    """Start a program that goes into the background by itself."""
    subprocess.run(command, env=made.env, check=True, stdout=subprocess.DEVNULL)


def _stop(file: Path) -> None:
    """End the program whose number is in a file."""
    with suppress(OSError, ValueError):
        process = int(file.read_text())
        os.kill(process, signal.SIGTERM)
        deadline_s = time.monotonic() + 10
        while Path(f"/proc/{process}").exists() and time.monotonic() < deadline_s:
            time.sleep(0.1)
