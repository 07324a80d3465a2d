"""How a run ends once a worker has come to the end of its script: well, if no other was still training."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from swell.supervisor.actions import Action, Log
from swell.supervisor.generation import Generation
from swell.supervisor.roster import Worker


class Finish:
    """Workers that ended with status 0, and what became of the others, who end each at its own pace."""

    def __init__(self) -> None:
        self.code = 0  # the run's status
        self._well: list[int] = []  # members that ended with 0, in that order
        self._told = False

    def well(self, member: int) -> bool:
        """A member ended its script with status 0: True, for the run is coming to its end."""
        self._well.append(member)
        return True

    def followed(self, worker: Worker, code: int) -> list[Action]:
        """Another one ended: by itself, or because it was stuck and had to be killed."""
        if code > 0:
            self.code = code
        return self._cut_off() if code < 0 and worker.killed and not worker.leaving else []

    def left_behind(self, waiting: Iterable[Worker], newest: Generation, alive: Collection[int]) -> list[Action]:
        """These workers wait for ones that are gone, and are sent home.

        They were still training if they had been in the newest world, and all that it lost had ended well. Where one of
        those had died instead, its peers may be stuck in what others got through, the last save say: that is no fault.
        """
        peaceful = all(member in alive or member in self._well for member in newest.members)
        training = [w for w in waiting if w.phase == "ready" and w.formed == w.left == newest.number]
        return self._cut_off() if peaceful and training else []

    def _cut_off(self) -> list[Action]:
        self.code = self.code or 1
        if self._told or not self._well:
            return []
        self._told = True
        return [
            Log(
                f"worker {self._well[0]} ended its script while others were still training, so they could not go on. "
                f"Usually it left the loop alone, as by early stopping on a figure of its own: decide by one that is "
                f"the same on all workers, such as job.metrics.results()."
            )
        ]
