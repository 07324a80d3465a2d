"""The session of a process: its world, its job, and how far the script is, in one object that can be closed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from swell.compat.adaptdl.members import Loader, Model
from swell.compat.adaptdl.place import Place
from swell.compat.adaptdl.states import States
from swell.compat.adaptdl.sums import Sums
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
    """One run in this process. Module-level functions use the current session."""

    def __init__(self) -> None:
        self.states, self.sums, self.place = States(), Sums(), Place()
        self.models: list[Model] = []
        self.loaders: list[Loader] = []
        self.closers: list[Callable[[], None]] = []  # undo the patches on the user's objects
        self.world: World | None = None
        self.folder: Path | None = None
        self.job: Job | None = None
        self.training: Loader | None = None  # the loader that trains
        self.current: Loader | None = None  # the loader that is being iterated
        self.notices: Notices | None = None
        self._step_world: int | None = None  # the number of the world in which the latest step was chosen
        self._checkpoint_place: list[int] | None = None  # the place in the checkpoint that this process has read
        self._seed: int | None = None
        self._training_number: int | None = None  # the training loader of the saved run
        self.saved_models: dict[str, Any] = {}  # models that were saved before training, by name

    @property
    def opened(self) -> bool:
        """Whether ``init_process_group`` was called."""
        return self.world is not None

    @property
    def collective(self) -> Collective:
        """The connection to the other replicas; to none before ``init_process_group``."""
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
        """Take over a world, and continue from the state of a checkpoint in ``folder`` if there is one."""
        self.world, self.folder = world, folder
        if folder is not None and threading.current_thread() is threading.main_thread():
            self.notices = Notices()
        if saved is not None:
            self._restore_place(saved)
            self._checkpoint_place = saved["place"]
            self.states.keep(saved["states"])
            self.saved_models = saved.get("models", {})

    def known_training(self) -> Loader | None:
        """The loader that trains, if that is known before the first backward pass."""
        if self.training is not None:
            return self.training
        if self._training_number is not None and self._training_number < len(self.loaders):
            return self.loaders[self._training_number]
        if self.world is not None and self.world.elastic and self.loaders:
            return self.loaders[0]  # a newcomer must join the others before it knows anything
        return None

    def start(self, training: Loader) -> Job:
        """The job; the first call makes it from everything that was handed over, and joins the run."""
        if self.job is not None:
            return self.job
        if self.world is None or not self.models:
            raise LoopError(
                "a training loop began without a model; expected an AdaptiveDataParallel. Call "
                "adaptdl.torch.init_process_group and wrap model and optimizer before the loop."
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
        hooks.before_step, hooks.after_choice = self._before_step, self._after_choice
        hooks.before_boundary = self._sync
        self.job = job
        job.engine.recovery.join()
        if job.steps:
            for model in self.models:  # it has stepped, in an earlier process: a scheduler need not warn
                model.optimizer._opt_called = True  # type: ignore[attr-defined]
        return job

    def _agreed_seed(self) -> int:
        """The seed that rank 0 gave to ``torch.manual_seed``; 0 without such a call, when torch draws 64 bits."""
        seed = torch.initial_seed()
        return int(self.collective.gather_text(str(seed if 0 <= seed < 2**32 else 0))[0])

    # What replicas do together besides training

    def merge_sums(self) -> None:
        """Sum all accumulators over the replicas; every replica calls it."""
        self.sums.merge(self.collective)

    def together(self, act: Callable[[], None]) -> None:
        """Do something with all replicas between steps; in an elastic world again if one of them is lost in it."""
        if self.elastic and self.job is not None:
            self.job.engine.recovery.together(act)
        else:
            act()

    def _sync_all(self) -> None:
        self.states.sync()
        self.merge_sums()

    def _sync(self) -> bool:
        """Combine the user's states and all sums; every replica calls it. False if one was lost in it."""
        assert self.job is not None
        return self.job.engine.recovery.attempt(self._sync_all)

    def _before_step(self) -> None:
        """Count what the last step added if it was committed, and merge sums in an elastic world.

        A worker that is lost in the next step then takes no sums with it. There is no merge in a world that was formed
        since the last step was chosen, because some of its members are new or were behind. If a worker is lost in the
        merge, the others keep their additions and merge them before the next step.
        """
        assert self.job is not None
        engine = self.job.engine
        step = engine.steps.current  # None before the first step of a pass
        self.sums.settle(keep=step is None or step.phase is Phase.COMMITTED)
        if self.elastic and self.sums.accumulators and self._step_world == self.generation:
            engine.recovery.attempt(self.merge_sums)

    def _after_choice(self) -> None:
        self._step_world = self.generation

    def end_evaluated_batch(self, stop: int) -> None:
        """A batch of an evaluation is done on every replica: count it, unless a replica was lost and it comes again."""
        if self.job is None or not self.elastic:
            self.place.index = stop
            self.stop_if_noticed()
            return
        recovery = self.job.engine.recovery
        if not recovery.attempt(self.merge_sums):
            self.sums.settle(keep=False)
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

    # State in the job's checkpoints; the keys are those of their format

    def state_dict(self) -> dict[str, Any]:
        """The place of the run in epochs and loops, and every state."""
        return {
            "place": self.place.counts(0 if self.job is None else self.job.steps),
            "left_in": self.place.early_exit,
            "seed": self._seed,
            "training": None if self.training is None else self.training.number,
            "merges": self.sums.merges,
            "states": self.states.capture(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from another replica's state, or from a checkpoint that ``open`` has not read."""
        joined = self.job is not None and self.job.engine.recovery.joined
        if not joined and (state["place"] == self._checkpoint_place or state["place"][0] == 0):
            return
        if joined and state["merges"] > self.sums.merges:  # the other replica has finished a merge with this one
            self.sums.forget()
        self._restore_place(state)
        self.states.restore(state["states"])

    def _restore_place(self, saved: dict[str, Any]) -> None:
        self.place.restore(saved["place"], early_exit=saved["left_in"])
        self.sums.merges = saved["merges"]
        self._seed, self._training_number = saved["seed"], saved["training"]

    def close(self) -> None:
        """End the run: undo patches, give signals back, leave the process group."""
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
    """The session of this process; a new one if there is none."""
    global _current
    if _current is None:
        _current = Session()
    return _current


def end_session() -> None:
    """Close the session; the process may open another one."""
    global _current
    session, _current = _current, None
    if session is not None:
        session.close()
