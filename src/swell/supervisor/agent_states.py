"""The states on the disk of an agent's machine: told to the supervisor, and sent, fetched and removed on its word."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from swell.errors import SwellError
from swell.supervisor.channel import encode
from swell.supervisor.run_dir import RunDir
from swell.supervisor.saved_state import SavedState, StateFolder
from swell.supervisor.secure_channel import RunIdentity
from swell.supervisor.state_link import receive_state, send_state

_LOOK_S = 0.5  # between two looks at the disk
_CONNECT_S = 10.0

Report = Callable[[dict[str, Any]], object]


class AgentStates:
    """Carries out the orders ``send state``, ``fetch state``, ``remove states``, ``set aside states``, ``whereabouts``.

    Where the supervisor's folder is not this machine's, this one gets what ``swell resume`` needs: the record of the
    run, its token, and where the newest state is.
    """

    def __init__(self, folder: Callable[[Path], StateFolder], token: bytes) -> None:
        self._folder_of, self._token = folder, token
        self._folder: StateFolder | None = None
        self._run_dir: RunDir | None = None
        self._shared = True
        self._told: list[SavedState] | None = None
        self._looked_at = 0.0
        self._address = ("", 0)
        self._identity: RunIdentity | None = None

    def begin(
        self, run_dir: Path, terms: Mapping[str, Any], *, folder: Path, identity: RunIdentity, address: tuple[str, int]
    ) -> None:
        """A supervisor has taken this machine into its run."""
        terms = terms["states"]
        if terms is None:  # nobody sees to copies
            self._folder = None
            return
        self._run_dir, self._folder = RunDir(run_dir), self._folder_of(run_dir)
        self._identity, self._address, self._told = identity, address, None
        self._shared = self._run_dir.is_of_head(terms["head"])
        if not self._shared and terms["record"] is not None:
            options = {**terms["record"]["options"], "run_dir": os.path.realpath(run_dir)}
            with contextlib.suppress(OSError):  # the run does not need it, only a resume from here
                self._run_dir.prepare({**terms["record"], "options": options, "folder": str(folder)}, self._token)

    def look(self, now: float, report: Report) -> None:
        """Tell the supervisor what is on the disk, if that has changed; ``now`` infinite looks in any case."""
        if self._folder is None or now - self._looked_at < _LOOK_S or (self._shared and self._told is not None):
            return
        self._looked_at = now if now < float("inf") else self._looked_at
        held: list[SavedState] = []
        if not self._shared:
            try:
                held = self._folder.states()
            except (SwellError, OSError):
                return
        if held != self._told:
            self._told = held
            report({"say": "states", "shared": self._shared, "held": [state.to_message() for state in held]})

    def order(self, order: Mapping[str, Any]) -> bool:
        """Carry out an order about states; False for any other."""
        word, folder = order["say"], self._folder
        if folder is None or self._run_dir is None:
            return False
        if word in ("send state", "fetch state"):
            threading.Thread(target=self._carry, args=(order, folder), name="swell-state", daemon=True).start()
        elif word == "remove states":
            folder.remove(order["names"])
        elif word == "set aside states":
            with contextlib.suppress(OSError):
                folder.set_aside(order["names"])
        elif word == "whereabouts":
            with contextlib.suppress(OSError):
                self._run_dir.write_whereabouts(order["facts"])
        else:
            return False
        return True

    def newest(self) -> str:
        """Where this machine has its newest state, in words; empty where it has none of its own."""
        if self._folder is None or self._run_dir is None or self._shared:
            return ""
        with contextlib.suppress(SwellError, OSError):
            states = self._folder.states()
            if states:
                return (
                    f"the newest state on this machine is {states[-1].name}; go on from it with `swell resume "
                    f"{self._run_dir.path} --listen` and an address of this machine"
                )
        return ""

    def _carry(self, order: Mapping[str, Any], folder: StateFolder) -> None:
        """In a thread of its own: one state, from this machine or to it. The other end says what went wrong."""
        assert self._identity is not None
        with contextlib.suppress(SwellError, OSError, TypeError, ValueError):
            host, port = self._address
            end = self._identity.connect(host, port, timeout_s=_CONNECT_S)
            with end:
                end.settimeout(_CONNECT_S)
                end.sendall(encode({"say": "state link", "ticket": order["ticket"]}))
                if end.recv(1) == b"+":
                    if order["say"] == "send state":
                        send_state(end, folder, SavedState.from_message(order["state"]))
                    else:
                        receive_state(end, folder)
