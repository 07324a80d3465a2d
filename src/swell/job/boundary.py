"""Between two steps: what waits for the user's code after a step is done here, and nowhere else.

Only then is everything consistent, because that code belongs to the step: it moves a model average, adds to sums of its
own, evaluates. So a save holds all of it, and newcomers, who begin with a step, find no collective action under way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from swell.core.events import Event, Noticed
from swell.errors import WorldError
from swell.job.peers import Peers
from swell.job.recovery import Recovery
from swell.job.run_state import RunState
from swell.job.saving import Saving
from swell.job.vote import Signals
from swell.loop.metrics import exchange_late


@dataclass(slots=True)
class Hooks:
    """Where a facade joins in; every replica calls each of them at the same moments."""

    before_step: Callable[[], None] | None = None  # before the next step is chosen
    after_choice: Callable[[], None] | None = None  # the next step is chosen, or there is none
    before_boundary: Callable[[], object] | None = None  # before a save, a stop or another world


class Boundary:
    """Saves, stops on notice and forms another world, in this order.

    ``after_step`` is called after each committed step, where something waits for that; ``stop`` ends this process,
    after the run was saved on notice.
    """

    def __init__(
        self,
        state: RunState,
        peers: Peers,
        recovery: Recovery,
        saving: Saving,
        *,
        hooks: Hooks,
        emit: Callable[[Event], None],
        after_step: Callable[[], None] | None,
        stop: Callable[[], NoReturn],
    ) -> None:
        self._state, self._peers, self._recovery, self._saving = state, peers, recovery, saving
        self._hooks, self._emit, self._after_step, self._stop = hooks, emit, after_step, stop

    def settle(self, signals: Signals | None) -> None:
        """Before the next step: do what the last one left to do; None where no step was committed in this world."""
        if signals is not None:
            if signals and not self._prepare():
                return  # a replica was lost in it; what is due still is after the next step
            self._saving.poll()
            if self._after_step is not None:
                self._after_step()
            if signals.noticed:
                self.stop_on_notice()
            elif signals.due:
                self._saving.save()
        if self._peers.interim or (signals is not None and signals.pending and not signals.noticed):
            self._recovery.reform("workers joined or left")

    def _prepare(self) -> bool:
        """Bring everything together that a save, a stop or another world must find; False where the world changed."""
        generation = self._peers.generation
        if self._hooks.before_boundary is not None:
            self._hooks.before_boundary()
        # Once, not again in another world: replicas that were lost to this one there begin with a step.
        return self._peers.generation == generation and self._recovery.attempt(self.count_late)

    def count_late(self) -> None:
        """Count what the user's code added to the metrics after the latest step; all replicas do this together."""
        exchange_late(self._state.metrics, self._peers.collective, self._peers.device)

    def end_pass(self) -> None:
        """The loader has no more steps: all replicas count what was added after the last one, once."""
        marks, epoch = self._state.marks, self._state.ledger.epoch

        def act() -> None:
            self.count_late()
            marks.closed_epoch = epoch

        if marks.closed_epoch != epoch:
            self._recovery.together(act)

    def save(self, name: str | None = None, *, body_done: bool) -> None:
        """Save now and wait for it; all replicas do this together."""
        self.count_late()
        self._saving.save(name=name, wait=True, body_done=body_done)

    def stop_on_notice(self) -> None:
        """Every replica knows of a notice: save, and end this process with the code that says "resume me".

        Where a replica is lost before the save is done, the others go on training. The notice holds, so the next step
        ends here again.
        """
        notice = self._peers.notice()
        self._emit(
            Noticed(
                time=time.time(),
                step=self._state.steps,
                source="another replica" if notice is None else notice.source,
                deadline_s=None if notice is None or notice.deadline is None else notice.seconds_left(),
            )
        )
        try:
            self._saving.save(wait=True)
        except WorldError as error:
            self._recovery.lost(error)
        else:
            self._stop()
