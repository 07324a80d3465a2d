"""What runs in each actor: an agent of the run in a process of its own, as long as the actor has its resources."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque

import ray
from ray._private.state import state

from swell.supervisor.relaunch import environment_with

_LOOK_S = 1.0  # between two looks at whether Ray drains this node
_AGAIN_S = 1.0  # before an agent that was killed is started again
_LAST_LINES = 3
# Ray kills the children of an actor that ends, but not theirs: behind a shell the agent lives on, sees that its
# standard input has ended, and lets its workers leave after a step.
_SHELL = ("sh", "-c", '"$@"; exit $?', "sh")


class AgentActor:
    """Holds the resources of one worker, and runs ``swell agent`` with them. Workers are children of that agent.

    Nothing of the run is in the actor's own process, because Ray's threads open connections there at any time, and its
    signals belong to Ray.
    """

    def serve(self, address: str, token: str) -> tuple[int, str]:
        """Keep an agent at work for the run at ``address`` until it has ended; its status and its last words.

        An agent that was killed is replaced. When Ray drains the node, the agent leaves the run and this process ends,
        so that Ray starts the actor again on another node, or keeps it as demand for one.
        """
        while True:
            agent = _Agent(address, token)
            drained = False
            while agent.process.poll() is None:
                reason = "" if drained else why_draining()
                if reason:
                    drained = True
                    agent.let_go(reason)
                time.sleep(_LOOK_S)
            status, words = agent.end()
            if drained:
                os._exit(1)
            if status != 128 + 9:
                return status, words
            time.sleep(_AGAIN_S)


class _Agent:
    """One process of ``swell agent`` that leaves when its standard input ends."""

    def __init__(self, address: str, token: str) -> None:
        line = [sys.executable, "-m", "swell", "agent", address, "--slots", "1", "--leave-with-stdin"]
        line += ["--machine", ray.get_runtime_context().get_node_id()]
        if ray.get_runtime_context().runtime_env.get("working_dir"):  # a copy of the driver's folder, made by Ray
            line += ["--folder", os.getcwd()]
        self.process = subprocess.Popen(
            [*_SHELL, *line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment_with({"SWELL_TOKEN": token}),
            start_new_session=True,
        )
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._reader = threading.Thread(target=self._read, name="swell-agent-output", daemon=True)
        self._reader.start()

    def let_go(self, reason: str) -> None:
        """Ask the agent to leave the run; nothing where it was asked before."""
        assert self.process.stdin is not None
        if self.process.stdin.closed:
            return
        try:
            self.process.stdin.write(reason)
            self.process.stdin.close()
        except OSError:  # it has ended by itself
            pass

    def end(self) -> tuple[int, str]:
        """The status of an agent that has ended, and its last words."""
        self.let_go("")
        self._reader.join(1.0)
        return self.process.wait(), "\n".join(self._lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self._lines.append(text.rstrip())
            print(text, end="", flush=True)  # into Ray's log of the actor


def why_draining() -> str:
    """Why the node of this process is about to go; empty where it stays, or where Ray does not say.

    Ray has no public name for it; its own trainers ask the same way.
    """
    try:
        draining = state.get_draining_nodes()
    except Exception:  # an answer that did not come is not worth a run
        return ""
    deadline_ms = draining.get(ray.get_runtime_context().get_node_id())
    if deadline_ms is None:
        return ""
    return "Ray drains the node" + (f" in {deadline_ms / 1000 - time.time():.0f} s" if deadline_ms else "")
