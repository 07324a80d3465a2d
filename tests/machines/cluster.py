"""Several machines for tests: network namespaces of this one behind a bridge of their own, or just its loopback."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from swell.errors import ConfigError
from swell.supervisor.control import ask
from swell.telemetry.chaos_report import ChaosReport, report_chaos
from swell.telemetry.log import read_events

ROOT = Path(__file__).parents[2]
TRAINING = Path(__file__).with_name("training.py")
_ENTER = 'hostname "$0"; exec "$@"'


@functools.cache
def why_no_namespaces() -> str:
    """Why no machine can be made of a namespace here; empty where it can."""
    if os.getuid() != 0:
        return "needs root to make network namespaces"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "needs ip and unshare"
    try:
        with Namespaces(1):
            return ""
    except subprocess.CalledProcessError as error:
        return f"may not make network namespaces: {(error.stderr or b'').decode().strip()}"


class Loopback:
    """Machines that share one address; what one of them is asked to run, this one runs."""

    ipv6 = False

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def address(self, machine: int) -> str:
        return "127.0.0.1"

    def line(self, machine: int, *command: str) -> list[str]:
        return list(command)


class Namespaces:
    """Machines with a name, an address and a link each. All of it is gone afterwards; nothing else is touched."""

    def __init__(self, count: int, *, ipv6: bool = False) -> None:
        self.ipv6 = ipv6
        self._prefix = f"swell{os.getpid()}"
        self._hub = f"{self._prefix}-hub"
        self.names = [f"{self._prefix}-{number}" for number in range(count)]

    def __enter__(self) -> Namespaces:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*self.names, self._hub):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def address(self, machine: int) -> str:
        return f"fd00:5e11::{machine + 1}" if self.ipv6 else f"10.213.7.{machine + 1}"

    def line(self, machine: int, *command: str) -> list[str]:
        """The command line that runs a command on a machine."""
        inside = ("unshare", "--uts", "sh", "-c", _ENTER, f"node{machine}", *command)
        return ["ip", "netns", "exec", self.names[machine], *inside]

    def cut(self, machine: int) -> None:
        """Take its link away, as if its cable was pulled."""
        _ip("-n", self._hub, "link", "set", f"port{machine}", "down")

    def mend(self, machine: int) -> None:
        _ip("-n", self._hub, "link", "set", f"port{machine}", "up")

    def _make(self) -> None:
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "bridge", "up")
        for number, name in enumerate(self.names):
            _ip("netns", "add", name)
            there = ("peer", "name", "eth0", "netns", name)
            _ip("-n", self._hub, "link", "add", f"port{number}", "type", "veth", *there)
            _ip("-n", self._hub, "link", "set", f"port{number}", "master", "bridge", "up")
            size = "/64" if self.ipv6 else "/24"
            extra = ("nodad",) if self.ipv6 else ()
            _ip("-n", name, "address", "add", self.address(number) + size, "dev", "eth0", *extra)
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Cluster:
    """A run on several machines that share one folder; none of its processes outlives the ``with`` block."""

    def __init__(self, folder: Path, machines: Loopback | Namespaces, script: tuple[str, ...]) -> None:
        self.folder, self.machines, self._script = folder, machines, script
        self.run_dir = folder / "run"
        self.head: subprocess.Popen[bytes] | None = None
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.address = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pids = [worker["pid"] for worker in self.status().get("workers", []) if worker["pid"]]
        for process in [self.head, *self.agents.values()]:
            if process is not None:
                process.kill()
                process.wait()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def begin(self, *options: str, workers: str = "1:8", slots: int = 1) -> None:
        """Start the head on machine 0."""
        host = self.machines.address(0)
        listen = f"[{host}]:0" if self.machines.ipv6 else f"{host}:0"
        facts = ("--listen", listen, "--slots", str(slots), "--workers", workers, "--run-dir", str(self.run_dir))
        self.head = self.start(0, "head", "run", *facts, *options, *self._script)
        self._find_address()

    def resume(self, *, listen: str | None = None, slots: int | None = None) -> None:
        """Start the head again, at the same address or another."""
        options = () if slots is None else ("--slots", str(slots))
        (self.run_dir / "control" / "listens_at").unlink(missing_ok=True)
        self.head = self.start(0, "head", "resume", str(self.run_dir), "--listen", listen or self.address, *options)
        self._find_address()

    def join(self, machine: int, *, slots: int = 1, wait_s: float = 60.0) -> None:
        """Start an agent on a machine."""
        token = self.run_dir / "control" / "token"
        options = ("--slots", str(slots), "--token-file", str(token), "--wait", str(wait_s))
        self.agents[machine] = self.start(machine, f"agent-{machine}", "agent", self.address, *options)

    def status(self) -> dict[str, Any]:
        try:
            return ask(self.run_dir, "status")
        except ConfigError:
            return {}

    def terminal(self) -> str:
        texts = [f"--- {path.name}\n{path.read_text()[-4000:]}" for path in sorted(self.folder.glob("*.out"))]
        logs = sorted((self.run_dir / "logs").glob("worker-*.log"), key=lambda log: log.stat().st_mtime)
        return "\n".join([*texts, *(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in logs[-4:])])

    def steps(self) -> list[dict[str, Any]]:
        """Every worker's committed steps, in order of time."""
        found = []
        for path in self.folder.glob("steps-*.jsonl"):
            found += [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        return sorted((each for each in found if "step" in each), key=lambda each: each["time"])

    def wait_for(self, what: Callable[[], Any], *, timeout_s: float = 120.0) -> Any:
        """The first true value of ``what``; fails with what all processes have said."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            value = what()
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"waited in vain:\n{self.terminal()}\n{self.status()}")

    def wait_for_world(self, size: int, *, timeout_s: float = 120.0) -> dict[str, Any]:
        """Wait until exactly so many workers train together; the run's status then."""

        def together() -> dict[str, Any]:
            status = self.status()
            whole = status.get("state") == "training" and len(status["members"]) == size == len(status["workers"])
            return status if whole else {}

        return self.wait_for(together, timeout_s=timeout_s)

    def wait_for_steps(self, number: int, *, replicas: int) -> None:
        """Wait until so many more steps were committed by a world of this size."""
        before = len([each for each in self.steps() if each["replicas"] == replicas])
        enough = before + number * replicas
        self.wait_for(lambda: len([e for e in self.steps() if e["replicas"] == replicas]) >= enough)

    def pids_on(self, machine: int) -> list[int]:
        """The worker processes of a machine."""
        status = self.status()
        numbers = [each["machine"] for each in status["machines"] if each["name"].startswith(f"node{machine} ")]
        return [worker["pid"] for worker in status["workers"] if worker["machine"] in (numbers or [machine])]

    def end(self, *, timeout_s: float = 240.0) -> int:
        assert self.head is not None
        try:
            return self.head.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run did not end:\n{self.terminal()}") from None

    def report(self) -> ChaosReport:
        """What the run's own log says of its samples."""
        return report_chaos(read_events(self.run_dir / "events.jsonl"))

    def weights(self) -> list[float]:
        return json.loads((self.folder / "weights.json").read_text())

    def _find_address(self) -> None:
        place = self.run_dir / "control" / "listens_at"
        self.address = self.wait_for(lambda: place.exists() and place.read_text())

    def start(self, machine: int, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        line = self.machines.line(machine, sys.executable, "-m", "swell", *arguments)
        with (self.folder / f"{name}.out").open("ab") as output:
            return subprocess.Popen(
                line,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=environment(),
                start_new_session=True,
            )


def environment() -> dict[str, str]:
    """This process's environment, in which scripts find the tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def train_alone(folder: Path, *arguments: str, script: Path = TRAINING) -> list[float]:
    """The weights of a script that nobody disturbs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hurry").touch()
    line = [sys.executable, str(script), str(folder), *arguments]
    subprocess.run(line, env={**environment(), "SWELL_RUN_DIR": str(folder / "run")}, check=True, timeout=300)
    return json.loads((folder / "weights.json").read_text())
