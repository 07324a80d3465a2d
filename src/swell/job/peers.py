"""Who is there: the replicas now, this one's place among them, and what reaches it from outside."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from swell.core.protocols import Collective
from swell.runtime.collective import Alone
from swell.runtime.faults import POINTS, Faults
from swell.runtime.notices import Notices
from swell.runtime.world import World
from swell.supervisor.notice import Notice

ALONE = Alone()


class Peers:
    """The replicas of a run as one of them sees them; the only part that holds the world."""

    def __init__(self, world: World, *, notices: Notices | None, faults: Faults) -> None:
        self._world, self._notices = world, notices
        self.faults = faults
        self.faulty = any(faults.plans(point) for point in POINTS)
        self.device = world.device  # what this replica computes on
        self.elastic = world.elastic  # whether replicas can join and leave while the run goes on
        self.undisturbed = not world.elastic and notices is None  # whether nothing can reach this replica from outside
        self._passed_on = False  # whether the supervisor handles the notice that reached this replica
        self._enter(world.collective if world.joined else ALONE)  # a newcomer is alone until it joins

    def _enter(self, collective: Collective) -> None:
        self.collective = collective  # what the replicas talk over
        self.rank, self.size = collective.rank, collective.size
        self.is_first = collective.rank == 0  # writes files and prints
        self.nodes = self._world.nodes  # the number of machines
        self.generation = self._world.generation  # of the present world; rises each time a world is formed

    @property
    def interim(self) -> bool:
        """Whether another world must be formed before the next step."""
        return self._world.interim

    def pending(self) -> bool:
        """Whether another world was announced; replicas may learn of it at different times."""
        return self._world.pending()

    def reform(self) -> Collective:
        """Leave the present group and join the newest; blocks until it is formed."""
        self._enter(self._world.reform())
        return self.collective

    def allow(self, sizes: Iterable[int], *, why: str) -> None:
        """Announce the numbers of replicas that the batch can be laid out on."""
        self._world.allow(sizes, why=why)

    def notice(self) -> Notice | None:
        """The request to stop the run, if there is one.

        A signal to this replica alone goes to the supervisor first: the others may go on without this replica.
        """
        notice = self._world.notice()
        if notice is not None or self._notices is None:
            return notice
        own = self._notices.notice()
        if own is not None and not self._passed_on:
            self._passed_on = self._world.leave(own.source)
        return None if self._passed_on else own

    def listen(self) -> None:
        """Take over the signals that ask the run to stop."""
        if self._notices is not None:
            self._notices.install()

    def stop_listening(self) -> None:
        """Give the signals back."""
        if self._notices is not None and threading.current_thread() is threading.main_thread():
            self._notices.uninstall()

    def reach(self, point: str, *, step: int) -> None:
        """Fail at this point of this step, if a fault is planned there."""
        if self.faulty:
            self.faults.reach(point, rank=self.rank, step=step)

    def mark(self, doing: str) -> None:
        """A sign of progress, and what this replica does next, for the supervisor of an elastic world."""
        if self.elastic:
            self._world.mark(doing)

    def trouble(self, name: str, text: str) -> None:
        """Tell the owner of the run what is wrong, though training goes on; an empty text when it is right again."""
        self._world.trouble(name, text)

    def close(self, *, alone: bool = False) -> None:
        """Leave the world for good; ``alone`` says that the others still train."""
        self._world.close(alone=alone)


def listener(notices: Notices | bool, run_dir: Path | None) -> Notices | None:
    """The notices to listen for; by default signals, where the run can be saved and this is the main thread."""
    if notices is True:
        listens = run_dir is not None and threading.current_thread() is threading.main_thread()
        return Notices() if listens else None
    return notices if isinstance(notices, Notices) else None
