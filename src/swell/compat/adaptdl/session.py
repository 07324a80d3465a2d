"""What AdaptDL keeps for the whole process, in one object that can be closed: world, job, and where the run is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from swell.compat.adaptdl.members import Loader, Model, Sums
from swell.compat.adaptdl.place import Place
from swell.compat.adaptdl.states import States
from swell.compat.adaptdl.sums import merge
from swell.core.protocols import Collective
from swell.errors import LoopError, WorldError
from swell.job import Job
from swell.loop.step import Phase
from swell.runtime.collective import Alone
from swell.runtime.notices import Notices
from swell.runtime.world import World

PART = "adaptdl"  # the name of this state in the job's checkpoints
_ALONE = Alone()


class Session:
    """One run in this process. Module-level functions use the current one; ``close`` ends it."""

    def __init__(self) -> None:
        self.states, self.place = States(), Place()
        self.models: list[Model] = []
        self.loaders: list[Loader] = []
        self.accumulators: list[Sums] = []
        self.closers: list[Callable[[], None]] = []  # give back what was patched
        self.world: World | None = None
        self.folder: Path | None = None
        self.job: Job | None = None
        self.training: Loader | None = None
        self.current: Loader | None = None  # the loader that is being iterated
        self.notices: Notices | None = None
        self._merges = 0  # how often sums were brought together: the replica with more has those of the others
        self._formed: int | None = None  # the world in which the last step began
        self._loaded: list[int] | None = None  # the place in the checkpoint that was read
        self._seed: int | None = None
        self._training_number: int | None = None

    @property
    def opened(self) -> bool:
        """Whether ``init_process_group`` was called."""
        return self.world is not None

    @property
    def collective(self) -> Collective:
        """What the replicas talk over; alone before ``init_process_group``."""
        if self.job is not None:
            return self.job.collective
        return self.world.collective if self.world is not None and self.world.joined else _ALONE

    @property
    def elastic(self) -> bool:
        """Whether workers may join, leave and be lost while the run goes on."""
        return self.job is not None and self.world is not None and self.world.elastic

    @property
    def generation(self) -> int | None:
        """The number of the present world."""
        return None if self.world is None else self.world.generation

    def open(self, world: World, folder: Path | None, saved: dict[str, Any] | None) -> None:
        """Take over a world; continue from what a checkpoint in ``folder`` holds, if there is one."""
        self.world, self.folder = world, folder
        if folder is not None and threading.current_thread() is threading.main_thread():
            self.notices = Notices()
        if saved is not None:
            self._restore_place(saved)
            self._loaded = saved["place"]
            self.states.keep(saved["states"])

    def known_training(self) -> Loader | None:
        """The loader that trains, where that is known before the first backward pass."""
        if self.training is not None:
            return self.training
        if self._training_number is not None and self._training_number < len(self.loaders):
            return self.loaders[self._training_number]
        if self.world is not None and self.world.elastic and self.loaders:
            return self.loaders[0]  # a newcomer must join the others before it knows anything
        return None

    def start(self, training: Loader) -> Job:
        """The job, made of everything that was handed over so far, at the place where the run is."""
        if self.job is not None:
            return self.job
        if self.world is None or not self.models:
            raise LoopError(
                "a training loop began without a model. Call adaptdl.torch.init_process_group and make an "
                "AdaptiveDataParallel of model and optimizer before the loop."
            )
        self.training = training
        self._seed = self._agreed_seed() if self._seed is None else self._seed
        job = Job(
            self.folder,
            seed=self._seed,
            progress=False,
            notices=self.notices or False,
            world=self.world,
            **training.job_settings(),
        )
        for model in self.models:
            model.hand_over(job)
        job.register(PART, self)
        training.hand_over(job)
        hooks = job.engine.hooks
        hooks.before_step, hooks.after_choice = self._before_step, self._step_chosen
        hooks.before_boundary = self._sync
        self.job = job
        job.engine.recovery.join()
        if job.steps:
            for model in self.models:
                model.optimizer._opt_called = True  # type: ignore[attr-defined]  # in an earlier process: do not warn
        return job

    def _agreed_seed(self) -> int:
        """Rank 0's ``torch.manual_seed``; 0 where nobody called that, and torch drew 64 bits of its own."""
        drawn = torch.initial_seed()
        return int(self.collective.gather_text(str(drawn if 0 <= drawn < 2**32 else 0))[0])

    # What replicas do together besides training

    def merge_sums(self) -> None:
        """Bring the sums of all accumulators together."""
        merge(self.accumulators, self.collective)
        self._merges += 1

    def together(self, act: Callable[[], None]) -> None:
        """Do something with all replicas between steps; in an elastic world again if one of them is lost in it."""

        def counted() -> None:
            act()
            self._merges += 1

        if self.elastic and self.job is not None:
            self.job.engine.recovery.together(counted)
        else:
            counted()

    def _sync_all(self) -> None:
        self.states.sync()
        self.merge_sums()

    def _sync(self) -> bool:
        """Bring the user's states and all sums together; every replica calls it. False where one was lost in it."""
        assert self.job is not None
        return self.job.engine.recovery.attempt(self._sync_all)

    def _before_step(self) -> None:
        """Count what the last step added if it was committed, and bring sums together in an elastic world.

        A worker that is lost in the next step then takes none of them along. Not in a world that was formed since the
        last step: some of its members are new, or were behind. Where a worker is lost right here, the others keep what
        they have and bring it together before the next step.
        """
        assert self.job is not None
        engine = self.job.engine
        step = engine.steps.current  # None before the first step of a pass
        for accumulator in self.accumulators:
            accumulator.settle(keep=step is None or step.phase is Phase.COMMITTED)
        if self.elastic and self.accumulators and self._formed == self.generation:
            engine.recovery.attempt(self.merge_sums)

    def _step_chosen(self) -> None:
        self._formed = self.generation

    def end_evaluated_batch(self, stop: int) -> None:
        """A batch of an evaluation is done on every replica, its sums counted; done again if one was lost in it."""
        if self.job is None or not self.elastic:
            self.place.index = stop
            self.stop_if_noticed()
            return
        recovery = self.job.engine.recovery
        if not recovery.attempt(self.merge_sums):
            for accumulator in self.accumulators:
                accumulator.settle(keep=False)
            return
        self.place.index = stop
        try:
            self.stop_if_noticed()
        except WorldError as error:
            recovery.lost(error)

    def stop_if_noticed(self) -> None:
        """In an evaluation loop: save and exit if any replica was asked to; every replica calls it."""
        if self.job is None or self.folder is None:
            return
        engine = self.job.engine
        noticed = engine.peers.notice() is not None
        if any(row[0] for row in self.collective.gather_numbers([float(noticed)])) and self._sync():
            engine.boundary.stop_on_notice()

    def save(self) -> None:
        """Save everything, if training has begun and there is a folder."""
        if self.job is not None:
            self.together(self._sync_all)
            self.job.save()

    # Kept in the job's checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Where the run is in epochs and loops, and every state."""
        return {
            "place": self.place.counts(0 if self.job is None else self.job.steps),
            "left_in": self.place.left_in,
            "seed": self._seed,
            "training": None if self.training is None else self.training.number,
            "merges": self._merges,
            "states": self.states.capture(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from another replica's state, or from a checkpoint; one that was read already changes nothing."""
        joined = self.job is not None and self.job.engine.recovery.joined
        if not joined and (state["place"] == self._loaded or state["place"][0] == 0):
            return
        if joined and state["merges"] > self._merges:  # the other replica has finished a merge with this one
            for accumulator in self.accumulators:
                accumulator.forget()
        self._restore_place(state)
        self.states.restore(state["states"])

    def _restore_place(self, saved: dict[str, Any]) -> None:
        self.place.restore(saved["place"], left_in=saved["left_in"])
        self._merges = saved["merges"]
        self._seed, self._training_number = saved["seed"], saved["training"]

    def close(self) -> None:
        """End the run: give optimizers and signals back, leave the process group."""
        for closer in self.closers:
            closer()
        if self.notices is not None and threading.current_thread() is threading.main_thread():
            self.notices.uninstall()
        if self.job is not None:
            self.job.close()
        elif self.world is not None:
            self.world.close()
        self.world = None


_current: Session | None = None


def current_session() -> Session:
    """The session of this process; a new one, not opened yet, where there is none."""
    global _current
    if _current is None:
        _current = Session()
    return _current


def end_session() -> None:
    """Close the session; another may be opened in the same process."""
    global _current
    ended, _current = _current, None
    if ended is not None:
        ended.close()
