"""Keeping every replica at the same place, whoever joins, leaves or is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from swell.checkpoint.transfer import share_state
from swell.core.events import Resized
from swell.core.protocols import Collective
from swell.errors import RunFolderError, WorldError
from swell.job.peers import Peers
from swell.job.random_streams import RandomStreams
from swell.job.run_state import RunState
from swell.job.saving import Saving
from swell.job.vote import agree_on_text, meet
from swell.runtime.collective import TorchCollective
from swell.telemetry.reporter import Reporter


@dataclass(frozen=True, slots=True)
class Gained:
    """What other replicas had finished when one was lost, and this one has now by their state."""

    step: bool  # the whole step
    update: bool  # at least the update of one more optimizer


class Recovery:
    """Joins the run, forms the world again after a loss, and brings all replicas to the most advanced state.

    With Committer the only part to raise ``marks.rounds``, by which replicas tell who is ahead.
    """

    def __init__(
        self,
        state: RunState,
        peers: Peers,
        saving: Saving,
        reporter: Reporter,
        random: RandomStreams | None = None,
    ) -> None:
        self._state, self._peers, self._saving, self._reporter = state, peers, saving, reporter
        self._random = random
        self.joined = False  # whether this replica ever had the run's state
        self.broken = False  # whether a replica was lost in a world that cannot be formed again

    def join(self) -> None:
        """Before the first step: enter the world, check that all agree, and continue from where the run is."""
        if self.joined:
            return
        if self._random is not None:
            self._random.begin()
        if self._peers.elastic:
            self._announce_sizes()
            self._form()
        else:
            self._catch_up(self._peers.collective)
        self.joined = True
        self._peers.listen()

    def join_early(self) -> None:
        """Join now if possible, so that evaluation and saving see the resumed run.

        Not where the world may change, because replicas that join it begin with a step.
        """
        if self._state.has_data and self._state.learners and not self._peers.elastic:
            self.join()

    def _announce_sizes(self) -> None:
        """Announce the numbers of replicas that fit the batch, where they are known; others are then refused."""
        sizes = self._state.pace.possible_replicas()
        if sizes is not None:
            self._peers.allow(sizes, why=self._state.pace.bounds)

    def _catch_up(self, collective: Collective) -> None:
        """Give everyone the most advanced member's state; where nobody has one, the newest checkpoint's or rank 0's."""
        state, faults = self._state, self._peers.faults
        if collective.size > 1:
            agree_on_text(collective, "the run", state.description, "Start every replica with the same script.")
        if faults.plans("reduce") and isinstance(collective, TorchCollective):
            collective.underway = lambda: self._peers.reach("reduce", step=state.steps)
        refusal = self._saving.take_folder()
        rows = collective.gather_numbers([self._place(), float(refusal is not None), *self._saving.numbering.place()])
        if any(row[1] for row in rows):
            raise refusal or RunFolderError(
                f"run folder {state.run_dir} was refused to the first replica; expected one that it can write and that "
                f"no active run does. See its message."
            )
        places = [int(row[0]) for row in rows]
        source, own = places.index(max(places)), places[collective.rank]
        if own < places[source] or own < 0:
            faults.reach("join", rank=collective.rank, step=max(0, places[source]))
        if places[source] < 0:
            resumed = self._saving.resume()
            if not resumed and collective.size > 1 and not state.pace.even:
                self._begin_alike(collective)
            self._enter_world(continues=True, resumed=resumed)
            return
        self._saving.numbering.follow(rows[source][2:], writes=self._peers.is_first)
        if min(places) < places[source]:
            ahead = None
            if collective.rank == source:
                ahead = {"state": state.capture(), "latest": self._reporter.latest}
            ahead = share_state(ahead, collective=collective, source=source)
            if own < 0:
                state.restore(ahead["state"])
            elif own < places[source]:
                state.catch_up(ahead["state"])
                self._reporter.remember(ahead["latest"])
        state.pace.enter_world()
        state.measuring.enter_world()
        self._enter_world(continues=own == places[source])

    def _begin_alike(self, collective: Collective) -> None:
        """Begin with the first replica's state; in the memory of the own one, unless replicas may be lost meanwhile."""
        mine = self._state.capture()
        own = None if self._peers.elastic else {"trainees": mine["trainees"]}
        self._state.restore(share_state(mine, collective=collective, source=0, own=own))

    def _enter_world(self, *, continues: bool, resumed: bool = False) -> None:
        """Give this replica its random numbers; a run that was resumed has them already."""
        self._state.data.enter_world(rank=self._peers.rank)
        if self._random is not None and not resumed:
            self._random.enter(samples=self._state.samples, continues=continues)

    def _place(self) -> int:
        """How far this replica is; -1 for a newcomer, also if it has done something before it joined."""
        place = self._state.steps + self._state.marks.rounds
        return place if place and self.joined else -1

    def lost(self, error: WorldError) -> Gained:
        """A replica was lost: form the world again, or raise where that cannot be done."""
        if not self._peers.elastic:
            self.broken = True
            raise error
        steps, stepped = self._state.position
        self.reform("a replica was lost")
        now = self._state.position
        return Gained(step=now[0] > steps, update=now > (steps, stepped))

    def reform(self, reason: str) -> None:
        """Leave the old world, enter the new one, and bring everyone to the same place."""
        began, before = time.perf_counter(), self._peers.size
        collective, lost = self._form()
        self._reporter.emit(
            Resized(
                time=time.time(),
                step=self._state.steps,
                before=before,
                after=collective.size,
                reason="a replica was lost" if lost else reason,
                pause_s=time.perf_counter() - began,
            )
        )

    def _form(self) -> tuple[Collective, bool]:
        """Form the newest world and catch up, again where a replica is lost on the way; whether one was."""
        lost = False
        self._reporter.flush()  # another replica may be the first in the new world, and looks at the log
        while True:
            try:
                collective = self._peers.reform()
                self._catch_up(collective)
                return collective, lost
            except WorldError:
                lost = True

    def meet(self, *, leaving: bool = False) -> None:
        """Make sure that every replica is between two steps, or with ``leaving`` that all are closing the job."""
        collective, learners = self._peers.collective, self._state.learners
        gather = learners[0].early.gather_votes(collective) if learners else collective.gather_numbers
        meet(collective, gather, leaving=leaving)

    def attempt(self, act: Callable[[], None]) -> bool:
        """Do something that all replicas do together between steps; False where one was lost in it."""
        try:
            self.meet()
            act()
        except WorldError as error:
            self.lost(error)
            return False
        self._state.marks.rounds += 1
        return True

    def together(self, act: Callable[[], None]) -> None:
        """Do something that all replicas do together between steps; again if one of them is lost in it.

        Not again where the others had finished it: their state, which this replica has then, counts it as done.
        """
        rounds = self._state.marks.rounds
        while not self.attempt(act) and self._state.marks.rounds == rounds:
            pass
