"""A real Slurm for tests: munged, slurmctld and several slurmd of Debian's packages as nodes of this machine."""

from __future__ import annotations

import functools
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")


@functools.cache
def why_no_slurm() -> str:
    """Why no Slurm can be started here; empty where it can."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is missing: scripts/slurm.sh installs it on Debian"
    return "" if os.getuid() == 0 else "needs root to start Slurm's daemons"


class Slurm:
    """Nodes n1, n2, ... with one CPU each, and the partitions low and high: jobs of high preempt those of low.

    None of the daemons outlives the ``with`` block, and none uses the system's own configuration.
    """

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self.nodes = folder, [f"n{number + 1}" for number in range(nodes)]
        self.conf = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Slurm:
        try:
            self._configure()
            self._daemon("munged", "--foreground", "--force", *self._munge_options())
            self.wait_for(lambda: (self.folder / "munge.socket").exists())
            self._daemon("slurmctld", "-D", "-f", str(self.conf))
            for node in self.nodes:
                self.start_node(node)
            self.wait_for(lambda: self.state_of_nodes() == dict.fromkeys(self.nodes, "IDLE"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in reversed(self._daemons.values()):
                process.send_signal(number)
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and any(p.poll() is None for p in self._daemons.values()):
                time.sleep(0.1)
        for pid in self._processes():  # steps outlive their slurmd
            os.kill(pid, signal.SIGKILL)

    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.conf)}

    def start_node(self, node: str) -> None:
        self._daemon("slurmd", "-D", "-N", node, "-f", str(self.conf), name=f"slurmd-{node}")

    def lose_node(self, node: str) -> None:
        """A node is gone with all that ran there, as if it had lost its power."""
        daemon = self._daemons.pop(f"slurmd-{node}")
        daemon.kill()
        daemon.wait()
        for pid in self._processes(SLURMD_NODENAME=node):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def submit(self, script: str, *options: str, environ: Mapping[str, str]) -> int:
        """Submit a batch script; the number of its job."""
        line = ["sbatch", "--parsable", "--output", str(self.folder / "job-%j.out"), *options]
        return int(self._tell(*line, text=script, environ=environ))

    def state(self, job: int) -> str:
        """PENDING, RUNNING, COMPLETED, ..."""
        return self._tell("scontrol", "show", "job", str(job)).partition("JobState=")[2].split()[0]

    def restarts(self, job: int) -> int:
        return int(self._tell("scontrol", "show", "job", str(job)).partition("Restarts=")[2].split()[0])

    def state_of_nodes(self) -> dict[str, str]:
        lines = self._tell("scontrol", "show", "node", "--oneliner").splitlines()
        found = [(line.partition("NodeName=")[2].split()[0], line.partition("State=")[2].split()[0]) for line in lines]
        return dict(found)

    def nodes_of(self, job: int) -> list[str]:
        """The nodes of a running job, the batch script's first."""
        names = self._tell("squeue", "--noheader", "--job", str(job), "--format", "%N").strip()
        return self._tell("scontrol", "show", "hostnames", names).split()

    def wait_for(self, what: Callable[[], object], *, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if what():
                    return
            except (subprocess.CalledProcessError, IndexError):  # slurmctld does not answer yet
                pass
            time.sleep(0.2)
        raise AssertionError(f"waited in vain:\n{self.said()}")

    def said(self) -> str:
        files = sorted([*self.folder.glob("*.log"), *self.folder.glob("job-*.out")])
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def _processes(self, **variables: str) -> list[int]:
        """The processes that belong to a job of this Slurm, by what is in their environment."""
        wanted = [f"{name}={value}".encode() for name, value in {"SLURM_CONF": str(self.conf), **variables}.items()]
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                given = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if all(each in given for each in wanted) and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        return found

    def _daemon(self, program: str, *options: str, name: str = "") -> None:
        with (self.folder / f"{name or program}.log").open("ab") as log:
            line = [program, *options]
            self._daemons[name or program] = subprocess.Popen(
                line, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def _tell(self, *line: str, text: str | None = None, environ: Mapping[str, str] | None = None) -> str:
        given = {**os.environ, **(environ or {}), **self.environment()}
        done = subprocess.run(line, input=text, env=given, check=True, capture_output=True, text=True, timeout=30)
        return done.stdout

    def _munge_options(self) -> list[str]:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        names = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed", "key-file": "key"}
        return [f"--{option}={self.folder}/munge.{name}" for option, name in names.items()]

    def _configure(self) -> None:
        host, ports = socket.gethostname(), _free_ports(1 + len(self.nodes))
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        nodes = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 State=UNKNOWN"
            for node, port in zip(self.nodes, ports[1:], strict=True)
        ]
        self.conf.write_text(
            f"""ClusterName=swell
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={getpass.getuser()}
SlurmdUser={getpass.getuser()}
AuthType=auth/munge
# A requeued job waits until the credentials of its first start have expired.
AuthInfo=socket={self.folder / "munge.socket"},cred_expire=5
StateSaveLocation={self.folder / "state"}
SlurmdSpoolDir={self.folder / "spool"}/%n
SlurmctldPidFile={self.folder / "slurmctld.pid"}
SlurmdPidFile={self.folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=4
KillWait=5
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2,batch_sched_delay=0,sched_min_interval=100000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
{chr(10).join(nodes)}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=30 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""
        )


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
