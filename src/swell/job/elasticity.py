"""How a job lives through changes of its world: joining, re-forming, catching up, stopping on notice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from swell.checkpoint.transfer import share_state
from swell.core.events import Noticed, Resized
from swell.core.protocols import Collective
from swell.errors import WorldError
from swell.job import state as whole
from swell.job.vote import agree_on_text, meet
from swell.runtime.collective import TorchCollective
from swell.runtime.faults import read_faults
from swell.runtime.notices import Notices
from swell.supervisor.notice import EXIT_RESUME, Notice

if TYPE_CHECKING:
    from swell.job.job import Job


class Elasticity:
    """Keeps every replica of a job at the same place, whoever comes and goes."""

    def __init__(self, job: Job, *, notices: Notices | bool) -> None:
        self._job = job
        if notices is True:  # signals are for whoever can save, and for the main thread
            listens = job.run_dir is not None and threading.current_thread() is threading.main_thread()
            notices = Notices() if listens else False
        self._notices = notices if isinstance(notices, Notices) else None
        self.joined = False  # whether this replica was ever brought to where the run stands
        self.broken = False  # whether a replica was lost in a world that cannot be formed anew
        self.faults = read_faults()  # none, unless somebody wants to see the run get over them
        self._passed_on = False  # whether a notice to this replica is somebody else's to act on

    def notice(self) -> Notice | None:
        """Whether the run was asked to stop.

        A signal to this replica alone is passed on to whoever keeps the run up: the others may go on without it, and
        the world is then formed anew.
        """
        world = self._job._world
        told = world.notice()
        if told is not None or self._notices is None:
            return told
        own = self._notices.notice()
        if own is not None and not self._passed_on:
            self._passed_on = world.leave(own.source)
        return None if self._passed_on else own

    def join(self) -> None:
        """Before the first step: enter the world, agree with the others, and go on from where the run stands."""
        if self.joined:
            return
        if self._job._world.elastic:
            self._tell_sizes()
            self._form()
        else:
            self._catch_up(self._job.collective)
        self.joined = True
        if self._notices is not None:
            self._notices.install()

    def join_early(self) -> None:
        """Before something all do together, in the loop or before it: it shall see the run where it stands.

        Not where the world may change: those who join it begin with a step.
        """
        job = self._job
        if job._loader is not None and job._trainees and not job._world.elastic:
            self.join()

    def _tell_sizes(self) -> None:
        """Say on how many replicas the batch can be laid out, where that is known; other numbers are then refused."""
        sizes = self._job._pace.possible_replicas()
        if sizes is not None:
            self._job._world.allow(sizes, why=self._job._pace.bounds)

    def leave(self) -> None:
        """After the last step."""
        if self._notices is not None and threading.current_thread() is threading.main_thread():
            self._notices.uninstall()

    def _catch_up(self, collective: Collective) -> None:
        """Give everyone the most advanced member's state; where nobody has one, the newest checkpoint's or rank 0's."""
        job = self._job
        if collective.size > 1:
            agree_on_text(collective, "the run", job._described(), "Start every replica with the same script.")
        if self.faults.plans("reduce") and isinstance(collective, TorchCollective):
            collective.underway = lambda: self.reach("reduce")
        places = [int(row[0]) for row in collective.gather_numbers([self._place()])]
        source, mine = places.index(max(places)), places[collective.rank]
        if mine < max(places) or mine < 0:
            self.faults.reach("join", rank=collective.rank, step=max(0, max(places)))
        if places[source] < 0:
            if not job._keeper.resume() and collective.size > 1 and not job._pace.even:
                whole.restore(job, share_state(whole.capture(job), collective=collective, source=0))
            return
        if min(places) < places[source]:
            own = None
            if collective.rank == source:
                own = {"whole": whole.capture(job), "said": job._announcer.latest}
            state = share_state(own, collective=collective, source=source)
            if mine < 0:
                whole.restore(job, state["whole"])
                job._keeper.restore_rng(None)
            elif mine < places[source]:
                reads = job.metrics.reads
                whole.restore(job, state["whole"])
                job.metrics.repeat_reads(job.metrics.reads - reads)
                job._announcer.heard(state["said"])
        job._pace.enter_world()

    def _place(self) -> int:
        """How far this replica is, to tell the most advanced from those who must catch up; newcomers are at -1.

        So is one that has done something before it joined: it has no part in the run yet.
        """
        done = self._job.steps + self._job._ending.units
        return done if done and self.joined else -1

    def recover(self, error: WorldError) -> None:
        """A peer was lost in the middle of a step: form the world anew, or give up where it cannot be."""
        if not self._job._world.elastic:
            self.broken = True
            raise error
        self.reform("a replica was lost")

    def reform(self, reason: str) -> None:
        """Leave the old world, enter the new one, and bring everyone to the same place."""
        began, before = time.perf_counter(), self._job.replicas
        collective, lost = self._form()
        reason = "a replica was lost" if lost else reason
        self._job._ending.reformed()
        self._job._emit(
            Resized(
                time=time.time(),
                step=self._job.steps,
                before=before,
                after=collective.size,
                reason=reason,
                pause_s=time.perf_counter() - began,
            )
        )

    def _form(self) -> tuple[Collective, bool]:
        """Form the newest world and catch up, again where a replica is lost on the way; whether one was."""
        lost = False
        while True:
            try:
                collective = self._job._world.reform()
                self._catch_up(collective)
                return collective, lost
            except WorldError:
                lost = True

    def together(self, act: Callable[[], None]) -> None:
        """Do something that all replicas do together between steps; again if one of them is lost in it.

        Not again where the others got through: their state, which this replica then has, counts it as done.
        """
        ending = self._job._ending
        while True:
            before = ending.units
            try:
                meet(self._job.collective)
                act()
            except WorldError as error:
                self.recover(error)
                if ending.units > before:
                    return
            else:
                ending.units += 1
                return

    def reach(self, point: str) -> None:
        """Fail at this point, if somebody planned that."""
        self.faults.reach(point, rank=self._job.rank, step=self._job.steps)

    def stop(self) -> None:
        """Every replica knows of a notice: save, and end this process with the code that says "resume me".

        Where a replica is lost before that is done, the others go on training; the notice holds, so the next step ends
        here again.
        """
        job, notice = self._job, self.notice()
        job._emit(
            Noticed(
                time=time.time(),
                step=job.steps,
                source="another replica" if notice is None else notice.source,
                deadline_s=None if notice is None or notice.deadline is None else notice.seconds_left(),
            )
        )
        try:
            job._keeper.save(wait=True)
        except WorldError as error:
            self.recover(error)
            return
        job._announcer.run_ended("stopped on notice")
        self.leave()
        job.close()
        raise SystemExit(EXIT_RESUME)
