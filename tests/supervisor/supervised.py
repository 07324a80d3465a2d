"""A real supervised run for tests: started, watched through its control socket and logs, and never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swell.errors import ConfigError
from swell.supervisor.control import ask

WORKER = Path(__file__).parents[1] / "runtime" / "elastic_worker.py"


def _hear_signals() -> None:
    """Tests may run under nohup or in a shell's background, where signals are ignored; a supervisor heeds that."""
    for name in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(name, signal.SIG_DFL)


class SupervisedRun:
    """``swell run`` of the stand-in worker, in a folder of its own."""

    def __init__(self, folder: Path, *options: str, steps: int = 1_000_000, worker: tuple[str, ...] = ()) -> None:
        self._begin(folder, *options, str(WORKER), str(folder), str(steps), *worker)

    @classmethod
    def of(cls, folder: Path, *line: str) -> SupervisedRun:
        """``swell run`` of any script; ``line`` holds options, script and arguments."""
        run = cls.__new__(cls)
        run._begin(folder, *line)
        return run

    def _begin(self, folder: Path, *rest: str) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        line = ["run", "--run-dir", str(self.run_dir), *rest]
        self.output = (folder / "terminal").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "swell", *line],
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_hear_signals,
        )

    def __enter__(self) -> SupervisedRun:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.status().get("workers", []):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker["pid"], signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.output.close()

    def status(self) -> dict[str, Any]:
        try:
            return ask(self.run_dir, "status")
        except ConfigError:
            return {}

    def ask(self, word: str, **facts: Any) -> dict[str, Any]:
        return ask(self.run_dir, word, **facts)

    def terminal(self) -> str:
        return (self.folder / "terminal").read_text()

    def seen(self, event: str | None = None) -> list[dict[str, Any]]:
        """What all workers wrote down, in the order of time, each with its member's name."""
        events = []
        for path in self.folder.glob("seen-*.jsonl"):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    events.append({**json.loads(line), "member": int(path.stem.split("-")[1])})
        return sorted((e for e in events if event in (None, e["event"])), key=lambda e: e["time"])

    def wait_for(self, what: Callable[[], Any], *, timeout_s: float = 60.0) -> Any:
        """The first true value of ``what``; fails with what the terminal shows."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            value = what()
            if value:
                return value
            if self.process.poll() is not None and not what():
                break
            time.sleep(0.02)
        raise AssertionError(f"waited in vain (status {self.process.poll()}):\n{self.terminal()}")

    def wait_for_events(self, event: str, number: int, *, timeout_s: float = 60.0) -> None:
        """Wait until so many events of a kind were written down, also when the supervisor is gone."""
        deadline = time.monotonic() + timeout_s
        while len(self.seen(event)) < number:
            assert time.monotonic() < deadline, f"{len(self.seen(event))} of {number} {event}:\n{self.terminal()}"
            time.sleep(0.02)

    def wait_for_end_of_process(self, pid: int, *, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
            assert time.monotonic() < deadline, f"process {pid} is still there"
            time.sleep(0.02)

    def training(self, members: list[int], *, beyond: int = 0) -> list[dict[str, Any]]:
        """Wait until exactly these members, in this order of ranks, commit steps together; their workers' states."""

        def together() -> list[dict[str, Any]]:
            status = self.status()
            if status.get("state") != "training" or status["members"] != members:
                return []
            number = status["generation"]
            steps = {e["member"] for e in self.seen("step") if e["generation"] == number and e["step"] > beyond}
            return status["workers"] if steps == set(members) else []

        return self.wait_for(together)

    def end(self, *, timeout_s: float = 60.0) -> int:
        """Wait for the run's end; its exit status."""
        try:
            return self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run did not end:\n{self.terminal()}") from None


def pids(workers: list[dict[str, Any]]) -> dict[int, int]:
    return {worker["member"]: worker["pid"] for worker in workers}
