"""How a run ends: it fails, it is stopped, or its workers reach the end of their script."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from swell.supervisor.actions import Action, Log
from swell.supervisor.generation import Generation
from swell.supervisor.notice import EXIT_RESUME, Notice
from swell.supervisor.worker import Worker, describe_exit, failure_status


class RunEnd:
    """What ends the run, how its workers exited since, and the exit status that follows from both.

    A run finishes well if no worker was still training when the first one reached the end of its script. The others
    may end at their own pace.
    """

    def __init__(self) -> None:
        self.failure: int | None = None  # the status of a failed run: every worker is being killed
        self.stopping: Notice | None = None  # the notice to all workers
        self.finishing = False  # whether a worker has reached the end of its script
        self.saved = False  # whether a worker reported a checkpoint by its exit status
        self._stop_status = EXIT_RESUME
        self._unsaved: list[int] = []  # exit codes of workers that failed or were killed while the run was stopping
        self._finished: list[int] = []  # members that exited with 0, in that order
        self._finish_status = 0
        self._explained = False

    @property
    def begun(self) -> bool:
        """Whether the run is coming to its end."""
        return self.stopping is not None or self.finishing or self.failure is not None

    def fail(self, status: int) -> None:
        """The run has failed; the first failure counts."""
        if self.failure is None:
            self.failure = status

    def stop(self, notice: Notice, status: int) -> None:
        """All workers were given notice; ``status`` is the run's if they save."""
        self.stopping, self._stop_status = notice, status

    def finish(self, member: int) -> None:
        """A member reached the end of its script and exited with 0."""
        self.finishing = True
        self._finished.append(member)

    def finish_alone(self, member: int) -> list[Action]:
        """A member says that it has left the training loop while others were still in it."""
        self.finish(member)
        return self._cut_off()

    def follow(self, worker: Worker, code: int) -> list[Action]:
        """Another worker exited while the run was stopping or finishing: by itself, or killed because it was stuck."""
        actions: list[Action] = []
        if code not in (0, EXIT_RESUME):
            actions.append(Log(f"worker {worker.member} {describe_exit(code)} on its way out"))
            if self.stopping and worker.formed:
                self._unsaved.append(code)
        if self.finishing:
            self._finish_status = code if code > 0 else self._finish_status
            if code < 0 and worker.killed and not worker.leaving:
                actions += self._cut_off()
        return actions

    def carry_on(self) -> None:
        """Others have formed a world without those that failed, and save in their place."""
        self._unsaved.clear()

    def leave_behind(self, waiting: Iterable[Worker], newest: Generation, alive: Collection[int]) -> list[Action]:
        """These workers wait for peers that are gone, and are sent home.

        They were still training if they were in the newest world and every member it lost had finished. If one of
        those died instead, its peers may be stuck in something that others completed, such as the last save: that is
        no fault.
        """
        peaceful = all(member in alive or member in self._finished for member in newest.members)
        training = [w for w in waiting if w.phase == "ready" and w.formed == w.left == newest.number]
        return self._cut_off() if peaceful and training else []

    def status(self) -> int:
        """The exit status of the run, once every worker is gone."""
        if self.failure is not None:
            return self.failure
        if self.finishing:
            return self._finish_status
        failed = [code for code in self._unsaved if code > 0 or not self.saved]
        return failure_status(failed[0]) if failed else self._stop_status

    def _cut_off(self) -> list[Action]:
        self._finish_status = self._finish_status or 1
        if self._explained or not self._finished:
            return []
        self._explained = True
        return [
            Log(
                f"worker {self._finished[0]} ended its script while others were still training, so they could not go "
                f"on. Usually it left the loop alone, for example by early stopping on its own metric. Decide by a "
                f"value that is the same on all workers, such as job.metrics.results()."
            )
        ]
