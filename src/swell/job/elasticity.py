"""How a job lives through changes of its world: joining, re-forming, catching up, stopping on notice."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from swell.checkpoint.transfer import share_state
from swell.core.events import Noticed, Resized
from swell.core.protocols import Collective
from swell.errors import WorldError
from swell.job import state as whole
from swell.job.vote import agree_on_text
from swell.runtime.notice import EXIT_RESUME, Notice, Notices

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
        self._joined = False
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
        if self._joined:
            return
        self._joined = True
        world = self._job._world
        if world.elastic:
            world.reform()
        self._catch_up(self._job.collective)
        if self._notices is not None:
            self._notices.install()

    def leave(self) -> None:
        """After the last step."""
        if self._notices is not None:
            self._notices.uninstall()

    def _catch_up(self, collective: Collective) -> None:
        """Give everyone the most advanced member's state; where nobody has one, the newest checkpoint's or rank 0's."""
        job = self._job
        if collective.size > 1:
            agree_on_text(collective, "the run", job._described(), "Start every replica with the same script.")
        places = [int(row[0]) for row in collective.gather_numbers([job._place()])]
        source = places.index(max(places))
        if places[source] < 0:
            if not job._keeper.resume() and collective.size > 1:
                whole.restore(job, share_state(whole.capture(job), collective=collective, source=0))
            return
        if min(places) < places[source]:
            state = share_state(
                whole.capture(job) if collective.rank == source else None, collective=collective, source=source
            )
            if places[collective.rank] < places[source]:
                whole.restore(job, state)
                if places[collective.rank] < 0:
                    job._keeper.restore_rng(None)
        job._pace.enter_world()

    def recover(self, error: WorldError) -> None:
        """A peer was lost in the middle of a step: form the world anew, or give up where it cannot be."""
        if not self._job._world.elastic:
            raise error
        self.reform("a replica was lost")

    def reform(self, reason: str) -> None:
        """Leave the old world, enter the new one, and bring everyone to the same place."""
        began, before = time.perf_counter(), self._job.replicas
        while True:
            try:
                collective = self._job._world.reform()
                self._catch_up(collective)
                break
            except WorldError:
                if not self._job._world.elastic:
                    raise
                reason = "a replica was lost"
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

    def stop(self) -> None:
        """Every replica knows of a notice: save, and end this process with the code that says "resume me"."""
        job, notice = self._job, self.notice()
        job._emit(
            Noticed(
                time=time.time(),
                step=job.steps,
                source="another replica" if notice is None else notice.source,
                deadline_s=None if notice is None or notice.deadline is None else notice.seconds_left(),
            )
        )
        job._keeper.save(wait=True)
        job._announcer.run_ended("stopped on notice")
        self.leave()
        job.close()
        raise SystemExit(EXIT_RESUME)
