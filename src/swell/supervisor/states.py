"""The states of a run whose machines have disks of their own, as its supervisor sees to them.

The newest one comes to the supervisor's machine and goes to at least one other, so that the loss of any machine with
its disk costs the run nothing that was saved. Nobody begins to train on a machine that lacks it.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swell.errors import SwellError
from swell.supervisor.mirroring import Mirror, Mirroring
from swell.supervisor.places import HERE, Places
from swell.supervisor.run_dir import RunDir
from swell.supervisor.saved_state import SavedState, StateFolder
from swell.supervisor.state_copies import (
    Copy,
    holders,
    newest_safe_state,
    newest_state,
    next_copies,
    outdated,
    strays,
)
from swell.supervisor.state_link import receive_state, send_state

_LOOK_S = 0.5  # between two looks at the disk
_AGAIN_S = 5.0  # from a copy that failed to the next attempt
_LINK_S = 30.0  # for a machine to open the connection of a copy


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """Where the states of a run are, and how many machines have the newest."""

    folder: Callable[[Path], StateFolder]  # of a run's folder
    copies: int = 2
    mirror: Mirror | None = None
    fresh: bool = False  # whether the run starts over, and earlier states are of no use
    from_here: bool = False  # whether to go on from what is here, though a newer state is known to be elsewhere


@dataclass(slots=True)
class _Transfer:
    copy: Copy
    ticket: str
    began_at: float
    outdated: list[str]  # states that can go where it comes
    linked: bool = False  # whether the other machine has opened the connection


class States:
    """Follows the states on all machines and orders copies; looked at from the supervisor's loop, never waits there."""

    def __init__(
        self,
        options: StateOptions,
        run_dir: RunDir,
        places: Places,
        *,
        patience_s: float,
        order: Callable[[int, Mapping[str, Any]], None],
        log: Callable[[str], None],
        trouble: Callable[[str, str], None],
    ) -> None:
        self.options, self._run_dir, self._places = options, run_dir, places
        self._order, self._log, self._trouble = order, log, trouble
        self._patience_s, self._ended_at = patience_s, 0.0
        self._folder = options.folder(run_dir.path)
        self._held: dict[int, list[SavedState]] = {HERE: []}  # of machines with disks of their own, and of this one
        self._unheard: set[int] = set()  # machines that have joined and not said what they have
        self._urgent: set[int] = set()  # machines that cannot begin before they have the newest
        self._began = False
        self._transfers: dict[int, _Transfer] = {}  # by the other machine
        self._done: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()  # ticket and error
        self._looked_at, self._retry_at = -_LOOK_S, 0.0
        self._told: dict[str, Any] = {}  # what was last said of where states are
        mirror = options.mirror
        self._mirroring = None if mirror is None else Mirroring(mirror, self._folder, trouble=trouble)
        self._awaited = run_dir.read_whereabouts()
        self._name = secrets.token_hex(16)  # of this start of the run, for machines that look into its folder

    def begin(self) -> None:
        """Look at this machine's disk for the first time; a run that starts over puts aside what it has."""
        if self.options.fresh:
            self._awaited, self._began = {}, True
            names = [state.name for state in self._folder.states()]
            with contextlib.suppress(OSError):
                self._folder.set_aside(names)
        self._held[HERE] = self._folder.states()
        self._run_dir.write_head(self._name)

    def invite(self, node: int) -> dict[str, Any]:
        """What a machine that joins needs to know; it will say what it has."""
        self._unheard.add(node)
        try:
            record = self._run_dir.read_record(trust=True)
        except SwellError:
            record = None
        return {"head": self._name, "record": record}

    def lost(self, node: int) -> None:
        """A machine is gone, and its disk with it as far as the run knows."""
        self._unheard.discard(node)
        self._urgent.discard(node)
        self._held.pop(node, None)
        self._transfers.pop(node, None)

    def reported(self, node: int, report: Mapping[str, Any]) -> None:
        """A machine says which states are on its disk."""
        first = node in self._unheard
        self._unheard.discard(node)
        if report["shared"]:
            return
        states = [SavedState.from_message(each) for each in report["held"]]
        if first:
            known = [state for held in self._held.values() for state in held]
            others = strays(states, known, open_end=not self._began)
            if others:
                names = [state.name for state in others]
                self._order(node, {"say": "set aside states", "names": names})
                self._log(
                    f"machine {node} has {', '.join(names)}, from which this run did not go on; they are set aside "
                    f"there, nothing is deleted"
                )
            states = [state for state in states if state not in others]
        self._held[node] = states
        if first and self._told:
            self._order(node, {"say": "whereabouts", "facts": self._told})

    def may_begin(self, node: int) -> bool:
        """Whether a worker of this machine would find the newest state of the run on its disk, or there is none.

        Asked before a world is formed of workers that have none of the run's state in memory.
        """
        newest, number = newest_state(self._held), self._awaited.get("number", 0)
        if not self.options.from_here and number > (newest.number if newest is not None else 0):
            where = ", ".join(self._awaited.get("machines", [])) or "other machines"
            have = "none" if newest is None else newest.name
            self._trouble(
                "states",
                f"the newest state {self._awaited.get('name')} is on {where}, and the machines here have {have}: start "
                f"`swell agent` on one of those, or resume with --from-here to go on without it",
            )
            return False
        self._trouble("states", "")
        place = node if node in self._held else HERE  # others use this machine's folder
        if self._unheard or (newest is not None and place not in holders(self._held, newest)):
            self._urgent |= {place} - {HERE}
            return False
        self._began = True
        return True

    @property
    def _spread(self) -> bool:
        """Whether states belong on more than this machine's disk."""
        return len(self._held) > 1 or self._mirroring is not None

    def look(self, now: float) -> None:
        """See what has changed, and order what follows."""
        self._collect(now)
        if (self._spread or not self._began) and now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            with contextlib.suppress(SwellError, OSError):  # the supervisor itself reports a disk in trouble
                self._held[HERE] = self._folder.states()
            if self._mirroring is not None:
                self._mirroring.follow(self._held[HERE], now)
        if now >= self._retry_at:
            for copy in self._wanted():
                if copy.source in self._held and copy.target in self._held:  # not lost in this moment
                    self._start(copy, now)
        self._tell()

    def unfinished(self) -> bool:
        """The run has ended: whether its last state is still on its way to where it must be, and there is time."""
        self._ended_at = self._ended_at or time.monotonic()
        if self._settled():
            return False
        if time.monotonic() - self._ended_at < self._patience_s:
            return True
        self._log(f"the last state was not copied in time: it is on {self.facts().get('machines')}")
        return False

    def _settled(self) -> bool:
        """Whether all copies are made that can be made, as the disk is now."""
        with contextlib.suppress(SwellError, OSError):
            self._held[HERE] = self._folder.states()
        mirrored = self._mirroring is None or self._mirroring.settled(self._held[HERE])
        return mirrored and not self._transfers and not self._wanted()

    def link(self, ticket: str, end: socket.socket) -> None:
        """A machine has opened the connection for a copy."""
        transfer = next((each for each in self._transfers.values() if each.ticket == ticket), None)
        if transfer is None:
            end.close()
            return
        transfer.linked = True
        threading.Thread(target=self._carry, args=(transfer, end), name="swell-state", daemon=True).start()

    def facts(self) -> dict[str, Any]:
        """Where the newest state that has its copies is, for people and programs; nothing without one."""
        newest = newest_safe_state(self._held, copies=self.options.copies)
        if newest is None or not self._spread:
            return {}
        nodes = self._places.nodes
        names = [nodes[node].name if node in nodes else f"machine {node}" for node in holders(self._held, newest)]
        mirror = None if self._mirroring is None else self._mirroring.newest
        return {"name": newest.name, "number": newest.number, "machines": names, "mirrored": mirror}

    def _wanted(self) -> list[Copy]:
        incoming = any(transfer.copy.target == HERE for transfer in self._transfers.values())
        return next_copies(
            self._held,
            copies=self.options.copies,
            urgent=self._urgent,
            busy={*self._transfers, *([HERE] if incoming else [])},
            leaving=[number for number, node in self._places.nodes.items() if node.leaving],
        )

    def _start(self, copy: Copy, now: float) -> None:
        node = copy.source if copy.target == HERE else copy.target
        old = [state.name for state in outdated(self._held[copy.target], copy.state)]
        transfer = _Transfer(copy, secrets.token_hex(16), now, old)
        self._transfers[node] = transfer
        if copy.target == HERE and not self._began:
            self._log(f"machine {node} has the newest state {copy.state.name}: the run goes on from it")
        word = "send state" if copy.target == HERE else "fetch state"
        self._order(node, {"say": word, "ticket": transfer.ticket, "state": copy.state.to_message()})

    def _carry(self, transfer: _Transfer, end: socket.socket) -> None:
        """In a thread of its own: one state, from this machine or to it."""
        error = ""
        try:
            with end:
                end.settimeout(_LINK_S)
                end.sendall(b"+")
                if transfer.copy.target == HERE:
                    receive_state(end, self._folder)
                    self._folder.remove(transfer.outdated)
                else:
                    send_state(end, self._folder, transfer.copy.state)
        except (SwellError, OSError) as failure:
            error = str(failure)
        self._done.put((transfer.ticket, error))

    def _collect(self, now: float) -> None:
        """Note the copies that have ended, and those that never began."""
        ended: dict[str, str] = {}
        with contextlib.suppress(queue.Empty):
            while True:
                ticket, error = self._done.get_nowait()
                ended[ticket] = error
        for node, transfer in list(self._transfers.items()):
            late = not transfer.linked and now - transfer.began_at > _LINK_S
            if transfer.ticket not in ended and not late:
                continue
            del self._transfers[node]
            copy, error = transfer.copy, ended.get(transfer.ticket, "the machine did not connect")
            if error:
                self._retry_at = now + _AGAIN_S
                self._trouble(
                    f"copy {node}", f"state {copy.state.name} was not copied to or from machine {node}: {error}"
                )
                continue
            self._trouble(f"copy {node}", "")
            if copy.target in self._held:
                self._held[copy.target] = [*self._held[copy.target], copy.state]
                self._urgent.discard(copy.target)
            if transfer.outdated and copy.target != HERE:
                self._order(copy.target, {"say": "remove states", "names": transfer.outdated})

    def _tell(self) -> None:
        """Tell all machines where the newest state is, so that each can say so when it is resumed."""
        facts = self.facts()
        if len(self._held) > 1 and facts and facts != self._told:
            before, self._told = self._told, facts
            with contextlib.suppress(OSError):
                self._run_dir.write_whereabouts(facts)
            for node in list(self._held):  # a machine may be found lost in this moment
                if node != HERE:
                    self._order(node, {"say": "whereabouts", "facts": facts})
            if facts["machines"] != before.get("machines"):
                self._log(f"the newest states are kept on {', '.join(facts['machines'])}, from {facts['name']} on")
