"""The engine under a job: builds its parts, each from what it needs, and ends them."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import NoReturn

from swell.checkpoint.run_lock import RunLock
from swell.core.events import RunEnded, Warned
from swell.core.protocols import Sink
from swell.errors import CheckpointError, DisagreementError, LoopError, RunFolderError, WorldError
from swell.job.advice import Advice
from swell.job.boundary import Boundary, Hooks
from swell.job.committer import Committer
from swell.job.epochs import Epochs
from swell.job.horizon import Horizon
from swell.job.loader import TrainingLoader
from swell.job.memory import Memory
from swell.job.peers import Peers
from swell.job.planner import Planner
from swell.job.random_streams import RandomStreams
from swell.job.recovery import Recovery
from swell.job.rehearsals import AnyRehearsal
from swell.job.rollback import Rollback
from swell.job.run_state import RunState
from swell.job.saving import Saving, SavingOptions
from swell.job.sharing import Sharing
from swell.job.steps import Steps
from swell.job.update import Updater
from swell.job.vote import Signals
from swell.loop.statistics import Statistics
from swell.policies.decision import lays_out
from swell.supervisor.notice import EXIT_RESUME
from swell.telemetry.fanout import Fanout
from swell.telemetry.log import EventLog
from swell.telemetry.reporter import Reporter
from swell.telemetry.sinks import open_sinks


class Engine:
    """All parts of one job, for the job itself and for facades that drive a loop of another kind.

    Built in this order, and each part knows only parts above it: peers, state, reporter, horizon, planner, saving,
    recovery, committer, steps, boundary, loader and epochs. ``hooks`` let a facade join in between steps.
    """

    def __init__(
        self,
        state: RunState,
        peers: Peers,
        random: RandomStreams,
        *,
        statistics: Statistics | None,
        nonfinite: str,
        saving: SavingOptions,
        rehearsal: AnyRehearsal,
        sinks: Callable[[], Fanout],
    ) -> None:
        self.state, self.peers, self.rehearsal = state, peers, rehearsal
        self.hooks = Hooks()
        self._open_sinks, self._sinks = sinks, Fanout(())
        self.reporter = Reporter(self._opened_sinks, is_first=lambda: peers.is_first)
        emit = self.reporter.emit
        self.horizon = Horizon()
        self.planner = Planner(state, peers, self.horizon, statistics, measures=rehearsal.measures)
        self.saving = Saving(state, peers, random, saving, emit=emit, flush=self.reporter.flush)
        self.recovery = Recovery(state, peers, self.saving, self.reporter, random)
        self._advice = Advice(peers, outlook=self.planner.outlook, emit=emit)
        self.committer = Committer(
            state,
            peers,
            self.horizon,
            Rollback(random),
            reporter=self.reporter,
            nonfinite=nonfinite,
            trains=rehearsal.trains,
            after_commit=self._after_commit,
        )
        self.steps = Steps(
            state,
            peers,
            Updater(state.metrics, peers.device, nonfinite=nonfinite, exact=bool(statistics and statistics.exact)),
            self.committer,
            memory=Memory(peers.device, foresee=lays_out(state.pace.policy)),
            signals=self._signals,
            lost=self.recovery.lost,
            trains=rehearsal.trains,
        )
        self.boundary = Boundary(
            state,
            peers,
            self.recovery,
            self.saving,
            hooks=self.hooks,
            emit=emit,
            after_step=self._after_step if rehearsal.rehearses else None,
            stop=self._stop,
        )
        self.loader = TrainingLoader(
            state,
            self.planner,
            self.steps,
            self.boundary,
            self.recovery,
            hooks=self.hooks,
            emit=emit,
            require_ready=self._require_ready,
        )
        self.epochs = Epochs(
            state, peers, self.horizon, self.planner, self.committer, self.recovery, emit=emit, finish=self._finish
        )
        self.sharing = Sharing(state, peers, self.planner, self.steps, self.recovery)
        self._closed = self._prepared = False

    def require_open(self, call: str) -> None:
        """Refuse a call after the job was closed."""
        if self._closed:
            raise LoopError(
                f"{call}: the job was closed, so nothing would be logged or saved. Do it before job.close() (or in "
                "`with swell.Job(...) as job:`), or make another job on the same run folder, which resumes the run."
            )

    def begin(self, call: str) -> None:
        """The user's loop is about to begin; a rehearsal may begin from a checkpoint."""
        self.require_open(call)
        self.rehearsal.begin(self.state, self.peers)

    def _require_ready(self) -> None:
        if self._closed:
            self.require_open("the training loader")
        if not self.state.learners:
            raise LoopError("the job has no model yet. Call job.wrap(model, optimizer) before the loop.")

    def save(self, name: str | None = None) -> None:
        """Save a checkpoint now and wait for it; every replica calls it."""
        self.recovery.join_early()
        self.recovery.together(lambda: self._save(name))

    def _save(self, name: str | None = None) -> None:
        self.boundary.save(name, body_done=self.planner.pass_done or self.state.marks.body_done)

    def _signals(self, samples: int) -> Signals:
        """What this replica votes for, for the moment after a step of ``samples`` samples."""
        due, seconds = self.saving.due(samples), self.state.milestones.seconds
        if self.peers.undisturbed:
            return Signals(False, False, due, seconds)
        return Signals(self.peers.notice() is not None, self.peers.pending(), due, seconds)

    def _after_commit(self, step: int) -> None:
        if not self._prepared:  # now the optimizers have their states
            self._prepared = True
            self.saving.prepare()
        if self._sinks.shows_steps:  # what nobody listens to is not worked out
            self._advice.after_step(step)

    def _opened_sinks(self) -> Fanout:
        self._sinks = self._open_sinks()
        return self._sinks

    # The ends of a run

    def _finish(self) -> None:
        """The loop is over: nothing changes any more, so save the run as it is."""
        self.require_open("job.save")
        self.save()
        self._end("finished")

    def _after_step(self) -> None:
        if self.rehearsal.after_step(self.state, self.peers):
            self.close()
            raise SystemExit(0)

    def _stop(self) -> NoReturn:
        self._end("stopped on notice")
        self.close()
        raise SystemExit(EXIT_RESUME)

    def _end(self, reason: str) -> None:
        self.epochs.over, state = True, self.state
        self.reporter.emit(
            RunEnded(
                time=time.time(),
                step=state.steps,
                samples=state.samples,
                reason=reason,
                progress=state.pace.progress,
                base_batch=state.pace.base,
            )
        )
        self.peers.stop_listening()

    def close(self) -> None:
        """Save what was not saved, stop data workers, leave the process group; may be called twice."""
        alone = sys.exc_info()[0] is SystemExit and self.epochs.begun and not self.epochs.over  # sys.exit in the loop
        try:
            if not self._closed:
                alone = not self._end_early() or alone
        finally:
            for learner in self.state.learners:
                learner.release()
        self._closed = True
        if self.state.has_data:
            self.state.data.close()
        self.saving.close()
        self.reporter.close()
        self.saving.leave_folder()
        self.peers.close(alone=alone)

    def _end_early(self) -> bool:
        """The job is closed before its loop was over, as by early stopping: save what was learnt since the last save.

        False where other replicas are still training.

        Not while an exception is on its way: the state may be unsound, and the other replicas may know nothing of it
        and would be waited for. Nor for a facade that merges sums of its own before a save, because it saves itself.
        """
        if self.epochs.over or not self.recovery.joined or sys.exc_info()[0] is not None:
            return True
        if self.rehearsal.rehearses or self.recovery.broken or self.hooks.before_boundary is not None:
            return True
        self.steps.leave()
        together = True
        try:
            self._save_unsaved()
        except (WorldError, CheckpointError, DisagreementError, RunFolderError) as error:  # closing must not fail
            message = f"what was done since the last save could not be saved when the job was closed: {error}"
            self.reporter.emit(Warned(time=time.time(), message=message))
            together = not isinstance(error, DisagreementError)
            if isinstance(error, RunFolderError):  # it has no log any more
                warnings.warn(message, stacklevel=3)
        if self.epochs.begun:
            self._end("stopped by the script")
        else:
            self.peers.stop_listening()
        return together

    def _save_unsaved(self) -> None:
        """Together with the other replicas, where the first one has steps that are not saved."""
        state, collective, behind = self.state, self.peers.collective, self.saving.behind
        if state.run_dir is None or state.steps == 0 or not (behind or self.peers.elastic):
            return
        self.recovery.meet(leaving=True)
        if collective.gather_numbers([float(behind)])[0][0]:  # one that joined since the last save does not know
            self._save()


def sinks_of(
    lock: RunLock | None, *, progress: bool | None, extra: Sequence[Sink], events: str | None
) -> Callable[[], Fanout]:
    """How to open a job's sinks: its log, its progress line, the user's own, and a log named by the environment.

    Without a ``lock`` on a run's folder there is no log of its own.
    """

    def opened() -> Fanout:
        if lock is None:
            more = () if events is None else (EventLog(events, at_once=True),)
            return open_sinks(None, progress=progress, extra=(*extra, *more))
        more = () if events is None else (EventLog(events, at_once=True, may_write=lock.may_write_elsewhere),)
        return open_sinks(lock.folder, progress=progress, extra=(*extra, *more), may_write=lock.may_write)

    return opened
