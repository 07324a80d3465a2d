"""What AdaptDL keeps for the whole process, in one object that can be closed: world, job, and where the run stands."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch

from swell.checkpoint.store import Store
from swell.checkpoint.transfer import share_state
from swell.compat.adaptdl.states import States
from swell.core.protocols import Collective
from swell.errors import ConfigError, DamagedCheckpointError, LoopError, WorldError
from swell.job import Job
from swell.runtime.adaptdl_environment import read_adaptdl_environment
from swell.runtime.collective import Alone
from swell.runtime.environment import read_environment
from swell.runtime.explicit_group import open_direct_world
from swell.runtime.notices import Notices
from swell.runtime.world import World, open_world

if TYPE_CHECKING:
    from swell.compat.adaptdl.torch.accumulator import Accumulator
    from swell.compat.adaptdl.torch.data import AdaptiveDataLoaderHelper
    from swell.compat.adaptdl.torch.parallel import AdaptiveDataParallel
    from swell.compat.adaptdl.trainer import AdaptDLTorchTrainer

PART = "adaptdl"  # the name of this state in the job's checkpoints
_ALONE = Alone()


class Session:
    """One run in this process. Module-level functions speak to the current one; ``close`` ends it."""

    def __init__(self) -> None:
        self.states = States()
        self.models: list[AdaptiveDataParallel] = []
        self.trainers: list[AdaptDLTorchTrainer] = []
        self.loaders: list[AdaptiveDataLoaderHelper] = []
        self.accumulators: list[Accumulator] = []
        self.world: World | None = None
        self.folder: Path | None = None
        self.job: Job | None = None
        self.training: AdaptiveDataLoaderHelper | None = None
        self.current: AdaptiveDataLoaderHelper | None = None  # the loader that is being iterated
        self.notices: Notices | None = None
        self.epoch = 0  # epochs finished; also the number of the one under way
        self.in_epoch = False
        self.finished_loops = 0  # loader loops of this epoch that are through
        self.entered_loops = 0  # the same, counted by this process since the epoch began here
        self.ended_loops = 0  # loader loops that are through, in epochs or not
        self.index = 0  # samples through in an evaluation loop under way
        self.merges = 0  # how often sums were brought together: who has more has those of the others
        self._formed: int | None = None  # the world in which the last step began
        self._loaded: list[int] | None = None  # the place of the checkpoint that was read
        self.left_in: int | None = None  # the epoch in which the training loop was left early
        self.created = 0  # accumulators since the epoch began, for their names
        self._seed: int | None = None
        self._training_number: int | None = None

    @property
    def opened(self) -> bool:
        """Whether ``init_process_group`` was called."""
        return self.world is not None

    @property
    def collective(self) -> Collective:
        """What the replicas speak over; alone before ``init_process_group``."""
        if self.job is not None:
            return self.job.collective
        return self.world.collective if self.world is not None and self.world.joined else _ALONE

    def open(self, world: World, folder: Path | None) -> None:
        """Take over a world; go on from the newest complete checkpoint in ``folder``, if there is one."""
        self.world, self.folder = world, folder
        if folder is not None:
            if threading.current_thread() is threading.main_thread():
                self.notices = Notices()
            found = self._read(folder) if self.collective.rank == 0 else None
            saved = share_state(found, collective=self.collective, source=0)
            if saved is not None:
                self._take_place(saved)
                self._loaded = saved["place"]
                self.states.keep(saved["states"])

    @staticmethod
    def _read(folder: Path) -> dict[str, Any] | None:
        store = Store(folder, on_warning=lambda message: None)  # the job reads the same one and warns
        for found in reversed(store.all()):
            try:
                return store.load(found, parts=["registered"])["registered"].get(PART)
            except DamagedCheckpointError:
                continue
        return None

    def known_training(self) -> AdaptiveDataLoaderHelper | None:
        """The loader that trains, where that is known before the first backward pass."""
        if self.training is not None:
            return self.training
        if self._training_number is not None and self._training_number < len(self.loaders):
            return self.loaders[self._training_number]
        if self.world is not None and self.world.elastic and self.loaders:
            return self.loaders[0]  # a newcomer must join the others before it knows anything
        return None

    def start(self, training: AdaptiveDataLoaderHelper) -> Job:
        """The job, made of all that was handed over so far, at the place where the run stands."""
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
        hooks.before_step, hooks.after_choice = self.before_step, self.step_chosen
        hooks.before_boundary = self.sync_states
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

    @property
    def elastic(self) -> bool:
        """Whether workers may come, go and be lost while the run goes on."""
        return self.job is not None and self.world is not None and self.world.elastic

    def sync_states(self) -> bool:
        """Bring the user's states and all sums together; every replica calls it. False where one was lost in it."""
        assert self.job is not None
        return self.job.engine.recovery.attempt(self._sync_all)

    def merge_sums(self) -> None:
        """Bring the sums of all accumulators together."""
        from swell.compat.adaptdl.torch.accumulator import merge

        merge(self.accumulators)
        self.merges += 1

    def together(self, act: Callable[[], None]) -> None:
        """Do something with all replicas between steps; in an elastic world again if one of them is lost in it."""

        def counted() -> None:
            act()
            self.merges += 1

        if self.elastic and self.job is not None:
            self.job.engine.recovery.together(counted)
        else:
            counted()

    def before_step(self) -> None:
        """Bring sums together before a step begins, so that a worker that is lost in it takes none of them along.

        Not in a world that was formed since the last step: some of its members are new, or were behind. Where a worker
        is lost right here, the others keep what they have and bring it together before the next step.
        """
        if self.job is not None and self.elastic and self.accumulators and self._formed == self.generation:
            self.job.engine.recovery.attempt(self.merge_sums)

    def step_chosen(self) -> None:
        """A step was laid out in the world that there is now."""
        self._formed = self.generation

    @property
    def generation(self) -> int | None:
        """Which of the run's worlds this one is."""
        return getattr(self.world, "generation", None)

    def pass_round(self, stop: int) -> None:
        """A batch of an evaluation is through on every replica, its sums counted; done again if one was lost in it."""
        job = self.job
        if job is None or not self.elastic:
            self.index = stop
            self.stop_if_noticed()
            return
        recovery = job.engine.recovery
        if not recovery.attempt(self.merge_sums):
            for each in self.accumulators:
                each.settle(keep=False)
            return
        self.index = stop
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
        if any(row[0] for row in self.collective.gather_numbers([float(noticed)])) and self.sync_states():
            engine.boundary.stop_on_notice()

    def save(self) -> None:
        """Save everything, if training has begun and there is a folder."""
        if self.job is not None:
            self.together(self._sync_all)
            self.job.save()

    def _sync_all(self) -> None:
        self.states.sync()
        self.merge_sums()

    # Kept in the job's checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands in epochs and loops, and every state."""
        return {
            "place": self._place(),
            "left_in": self.left_in,
            "seed": self._seed,
            "training": None if self.training is None else self.training.number,
            "merges": self.merges,
            "states": self.states.capture(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from another replica's state, or from a checkpoint; one that was read already changes nothing."""
        if state["place"] == self._loaded or state["place"][0] == 0:
            return
        if state["merges"] > self.merges:  # they have what was added here, too
            for each in self.accumulators:
                each.forget()
        self._take_place(state)
        self.states.restore(state["states"])

    def _place(self) -> list[int]:
        steps = self.job.steps if self.job is not None else 0
        return [steps, self.epoch, self.finished_loops, self.index, self.ended_loops]

    def _take_place(self, saved: dict[str, Any]) -> None:
        _, self.epoch, self.finished_loops, self.index, self.ended_loops = saved["place"]
        self.merges = saved["merges"]
        self.left_in, self._seed, self._training_number = saved["left_in"], saved["seed"], saved["training"]

    def close(self) -> None:
        """End the run: give optimizers and signals back, leave the process group."""
        for patched in (*self.models, *self.trainers):
            patched.give_back()
        if self.notices is not None and threading.current_thread() is threading.main_thread():
            self.notices.uninstall()
        if self.job is not None:
            self.job.close()
        elif self.world is not None:
            self.world.close()
        self.world = None


_current: Session | None = None


def session() -> Session:
    """The session of this process; a new one, not opened yet, where there is none."""
    global _current
    if _current is None:
        _current = Session()
    return _current


def close() -> None:
    """End the session; another may be opened in the same process."""
    global _current
    ended, _current = _current, None
    atexit.unregister(_at_exit)
    if ended is not None:
        ended.close()


def _at_exit() -> None:
    if getattr(sys, "last_value", None) is None:  # otherwise the others do not know that we leave
        close()


def open_session(
    backend: str | None,
    *,
    address: str | None = None,
    port: int | None = None,
    rank: int | None = None,
    size: int | None = None,
) -> Session:
    """Join the world this process belongs to: by arguments, ``swell run``, ADAPTDL_* variables, torchrun, or alone."""
    here = session()
    if here.opened:
        raise LoopError(
            "the process group was initialized already. Call adaptdl.torch.init_process_group once; adaptdl.close() "
            "ends it."
        )
    said, launcher = read_adaptdl_environment(), read_environment()
    given = rank is not None or size is not None or address is not None
    if not given and (launcher.supervised or (said.num_replicas is None and launcher.launched)):
        world = open_world(backend=backend)
    else:
        size = size if size is not None else said.num_replicas or 1
        address, port = address or said.master_addr or "127.0.0.1", port or said.master_port or 0
        world = open_direct_world(
            backend=backend,
            rank=rank if rank is not None else said.replica_rank or 0,
            size=size,
            address=address,
            port=port,
            nodes=said.num_nodes or launcher.nodes,
            local_rank=launcher.local_rank,
        )
    atexit.register(_at_exit)
    folder = said.checkpoint_path or launcher.swell_run_dir
    here.open(world, None if folder is None else Path(folder))
    return here


def address_of(init_method: str) -> tuple[str, int | None]:
    """Host and port of ``tcp://host:port``; IPv6 in brackets."""
    parts = urlsplit(init_method if "//" in init_method else f"tcp://{init_method}")
    if parts.scheme != "tcp" or not parts.hostname:
        raise ConfigError(
            f"init_method={init_method!r} is not understood; expected tcp://host:port, or none to read ADAPTDL_* or "
            f"torchrun's variables."
        )
    return parts.hostname, parts.port
