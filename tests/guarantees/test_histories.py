"""Guarantees 2, 3 and 4 over random histories: the job's own parts, any sequence of worlds, any crash.

Replicas are threads that take turns (``stage.py``); the planner, the steps, the committer, the recovery, the boundary
and the loader are the job's. Only the arithmetic of tensors and the disk are replaced. A history is a list of events,
so that hypothesis shrinks one that fails to the few events that matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from swell.checkpoint.numbering import Numbering
from swell.checkpoint.transfer import share_state
from swell.core.events import Event
from swell.core.ledger import Ledger
from swell.core.order import Shuffled
from swell.core.protocols import Policy, Rule
from swell.core.types import ScaleState
from swell.data.loader_options import LoaderOptions
from swell.gradients.gradient_sum import GradientSum
from swell.job.boundary import Boundary, Hooks
from swell.job.committer import Committer
from swell.job.early_exchange import EarlyExchange
from swell.job.epochs import Epochs
from swell.job.gradient_watch import GradientWatch
from swell.job.horizon import Horizon
from swell.job.loader import TrainingLoader
from swell.job.memory import Memory
from swell.job.model_buffers import ModelBuffers
from swell.job.peers import Peers
from swell.job.planner import Planner
from swell.job.recovery import Recovery
from swell.job.rollback import Rollback
from swell.job.run_state import RunState
from swell.job.step_loss import StepLoss
from swell.job.steps import Steps
from swell.job.training_data import LoaderArguments, TrainingData
from swell.job.update import Outcome, Updater
from swell.job.vote import Signals
from swell.loop.pace import Pace
from swell.policies import Clamp, Fixed, Ramp, Schedule, Trace
from swell.rules import as_rule
from swell.rules.metric import may_use_moments_at_base
from swell.rules.worth import worth_power
from swell.runtime.faults import Faults
from swell.supervisor.notice import Notice
from swell.telemetry import Fanout
from swell.telemetry.reporter import Reporter
from tests.guarantees.stage import Actor, Disk, Generation, Stage, StageWorld

EPOCHS = 2
RULES = ["constant", "linear", "root", "adam-sde", "legw"]


@dataclass(frozen=True)
class Run:
    """The settings every replica was given."""

    samples: int
    seed: int
    policy: Policy
    rule: Rule
    micro: int
    learners: int


@dataclass(frozen=True)
class Lose:
    """Some replicas are lost in an exchange; others may have received all of it."""

    steps: int  # committed since the event before
    exchange: int  # of those after that
    victims: int  # one bit a rank
    receivers: int
    newcomers: int


@dataclass(frozen=True)
class Resize:
    """Another number of replicas is asked for."""

    steps: int
    size: int


@dataclass(frozen=True)
class Save:
    """A checkpoint is due."""

    steps: int


@dataclass(frozen=True)
class Stop:
    """The run is asked to stop, and started again on another number of replicas."""

    steps: int
    size: int


class Gradients:
    """Stands for the sum of a step's gradients: knows only whether there is one."""

    empty = False

    def codes(self) -> str:
        """It has no parameters."""
        return ""

    outdated = False

    def weigh(self, multiplier: float) -> None:
        """Nothing to weigh."""

    def take(self, **what: Any) -> None:
        """Nothing to add."""


class PathLearner:
    """Learns nothing but its path: for each update its samples, its batch and its factors."""

    schedule, scaler, model = None, None, torch.nn.Module()
    sharded = wants_preconditioned = on_one_gpu = False
    description = "a path"

    def __init__(self, rule: Rule) -> None:
        self.rule, self.worth_power, self.gradients = rule, worth_power(rule), Gradients()
        self.may_use_moments_at_base = may_use_moments_at_base(rule)
        self.optimizer = SimpleNamespace(param_groups=[{"lr": 1.0}])
        self.early = EarlyExchange(GradientSum(torch.optim.SGD([torch.zeros(1)], lr=1.0)))
        self.loss = StepLoss()
        self.noise = SimpleNamespace(window=1000.0, estimate=lambda: None, drain=lambda: None)
        self.path: list[list[Any]] = []
        self.last_clip = None
        self.touched, self.buffers = GradientWatch(), ModelBuffers(self.model)

    def clear(self) -> None:
        """It has no gradients."""

    def clip_of_others(self, clip: float) -> None:
        """It clips nothing."""

    def state_dict(self) -> dict[str, Any]:
        return {"path": [list(update) for update in self.path]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.path = [list(update) for update in state["path"]]


class PathUpdater(Updater):
    """Votes as ever, exchanges one number instead of gradients, and writes the update into the learner's path."""

    def run(self, collective: Any, step: Any, learner: Any, verdict: Any, position: Any, **options: Any) -> Outcome:
        samples = torch.tensor([float(sum(micro.size for micro in step.mine))])
        collective.sum_tensors([samples])
        assert int(samples) == step.plan.global_batch, "the shares of all replicas are the step"
        batch = ScaleState(
            scale=position.scale,
            base_batch=round(step.plan.global_batch / position.scale),
            progress=position.progress,
            samples=position.samples,
        )
        factors, gain = self.rule.factors(batch), self.rule.gain(batch)
        learner.path.append([step.epoch, step.start, step.stop, factors.lr, gain, position.progress])
        return Outcome(stepped=True, factors=(factors,), gain=gain, signals=verdict.signals)

    rule: Rule


class DiskSaving:
    """Saves to a disk that is a variable; the first replica writes, all take part."""

    def __init__(self, state: RunState, peers: Peers, disk: Disk) -> None:
        self._state, self._peers, self._disk = state, peers, disk
        self.numbering = Numbering(None)

    def poll(self) -> None:
        """Nothing is written in the background."""

    def take_folder(self) -> None:
        """Nobody else writes to a variable."""

    def save(self, *, wait: bool = False, body_done: bool = False, name: str | None = None) -> None:
        state = self._state.capture()
        state["ending"]["done"] = body_done
        self._peers.collective.gather_text("random numbers")
        if self._peers.is_first:
            self._disk.write(state)
        if wait:
            self._peers.collective.barrier()

    def resume(self) -> bool:
        saved = self._disk.read() if self._peers.is_first else None
        collective = self._peers.collective
        if not collective.gather_numbers([float(saved is not None)])[0][0]:
            return False
        self._state.restore(share_state(saved, collective=collective, source=0))
        return True


class Positions:
    """Data whose samples are their positions."""

    shared = True

    def state_dict(self) -> dict[str, Any]:
        return {}

    def fetch(self, span: Any, upcoming: Callable[[], Any]) -> range:
        return range(span.start, span.stop)

    def close(self) -> None:
        """Nothing to stop."""


@dataclass
class History:
    """Plays a list of events on a stage, and starts again from the disk when nobody is left."""

    run: Run
    events: list[Lose | Resize | Save | Stop]
    size: int
    most: int
    stage: Stage = field(init=False)
    disk: Disk = field(default_factory=Disk)
    counts: dict[str, int] = field(default_factory=dict)
    path: list[list[Any]] | None = None
    _steps: int = 0  # at the event before
    _exchanges: int = 0  # since the next event is due
    _save: bool = False
    _latest: int = 0  # the most steps that a replica has committed

    def play(self) -> list[list[Any]]:
        for _ in range(len(self.events) + 1):  # each start again takes an event
            self.stage = Stage()
            self.stage.exchanged = self._exchanged
            self.stage.announce(self.stage.enter(self.size, self._replica))
            self.stage.play()
            if self.path is not None:
                return self.path
            self.count("restarted")
        raise AssertionError("the run did not end")

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    # What happens

    def _committed(self, step: int) -> None:
        """A replica has committed a step: what is due after this many of them happens."""
        while self.events and step - self._steps >= self.events[0].steps and not isinstance(self.events[0], Lose):
            due = self.events.pop(0)
            self._steps = step
            self.count(type(due).__name__.lower())
            if isinstance(due, Save):
                self._save = True
            elif isinstance(due, Stop):
                self.stage.notice, self.size = Notice(source="a test", time=0.0), due.size
            elif isinstance(due, Resize):
                self._resize(due.size)
        self._latest = max(step, self._latest)

    def _exchanged(self, generation: Generation, number: int) -> None:
        """All messages of an exchange are there: this is where replicas may be lost."""
        self._welcome(generation)
        due = self.events[0] if self.events else None
        if not isinstance(due, Lose) or self._latest - self._steps < due.steps:
            return
        self._exchanges += 1
        if self._exchanges <= due.exchange:
            return
        self.events.pop(0)
        self._steps, self._exchanges = self._latest, 0
        ranks = range(len(generation.roster))
        victims = {generation.roster[rank] for rank in ranks if due.victims >> rank & 1}
        receivers = {rank for rank in ranks if due.receivers >> rank & 1}
        if not victims:
            return
        self.count("lost")
        survivors = [rank for rank in ranks if generation.roster[rank] not in victims]
        if 0 < len(receivers.intersection(survivors)) < len(survivors):
            self.count("torn")
        self.stage.lose(generation, number, victims=victims, receivers=receivers)
        alive = self.stage.alive
        self.stage.enter(min(due.newcomers, self.most - len(alive)) if alive else 0, self._replica)
        # What follows a loss has survivors only: they may be in the middle of something that newcomers know nothing of.
        roster = [member for member in generation.roster if member in alive]
        if roster or alive:
            self.stage.announce(roster or alive)

    def _resize(self, size: int) -> None:
        """Announce the oldest replicas, and new ones where there are too few; others are sent away."""
        alive = self.stage.alive
        alive += self.stage.enter(max(0, size - len(alive)), self._replica)
        self.stage.dismissed.update(alive[size:])
        self.stage.announce(alive[:size])

    def _welcome(self, generation: Generation) -> None:
        """Newcomers join once the survivors of a loss have formed a world."""
        alive = [number for number in self.stage.alive if number not in self.stage.dismissed]
        if generation is self.stage.generations[-1] and not generation.broken and set(alive) != set(generation.roster):
            self.stage.announce(alive)

    def _take_save(self) -> bool:
        save, self._save = self._save, False
        return save

    # A replica, of the job's own parts

    def _replica(self, actor: Actor) -> None:
        run = self.run
        peers = Peers(StageWorld(self.stage, actor), notices=None, faults=Faults())  # type: ignore[arg-type]
        pace = Pace(run.policy, micro=run.micro, constant_micro=False, capacity=None)
        state = RunState(pace, seed=run.seed, run_dir=None, settings="the same")
        state.learners = [PathLearner(run.rule) for _ in range(run.learners)]  # type: ignore[misc]
        positions: Any = Positions()
        given = LoaderArguments(positions, LoaderOptions())
        state.train_on(TrainingData(positions, Ledger(run.samples, seed=run.seed), drop_last=False, given=given))
        saving: Any = DiskSaving(state, peers, self.disk)
        reporter = Reporter(lambda: Fanout([]), is_first=lambda: peers.is_first)
        emit: Callable[[Event], None] = reporter.emit
        horizon, hooks = Horizon(), Hooks()
        planner = Planner(state, peers, horizon, None)
        recovery = Recovery(state, peers, saving, reporter)
        committer = Committer(
            state,
            peers,
            horizon,
            Rollback(),
            reporter=reporter,
            nonfinite="raise",
            trains=lambda step: True,
            after_commit=self._committed,
        )
        updater = PathUpdater(state.metrics, peers.device, nonfinite="raise", exact=False)
        updater.rule = run.rule
        steps = Steps(
            state,
            peers,
            updater,
            committer,
            memory=Memory(peers.device, foresee=False),
            signals=lambda samples: Signals(peers.notice() is not None, peers.pending(), self._take_save()),
            lost=recovery.lost,
            trains=lambda step: True,
        )

        def stop() -> NoReturn:
            raise SystemExit

        boundary = Boundary(state, peers, recovery, saving, hooks=hooks, emit=emit, after_step=lambda: None, stop=stop)
        loader = TrainingLoader(
            state, planner, steps, boundary, recovery, hooks=hooks, emit=emit, require_ready=lambda: None
        )

        def finish() -> None:
            recovery.together(lambda: boundary.save(body_done=True))
            self.path = state.learners[0].path  # type: ignore[attr-defined]

        epochs = Epochs(state, peers, horizon, planner, committer, recovery, emit=emit, finish=finish)
        for _ in epochs.count(EPOCHS):
            for _ in loader:
                for learner in state.learners:  # harmless for the second if a replica is lost with the first
                    steps.weigh([learner])
                    steps.step(None, (), [learner], None)


def straight(run: Run) -> list[list[Any]]:
    """The path of one replica to which nothing happens."""
    return History(run, [], size=1, most=1).play()


@st.composite
def runs(draw: st.DrawFn, most: int) -> Run:
    """A run whose policy goes from the base batch up to 6 times as much; none of them looks at the world."""
    base = draw(st.integers(1, 6).map(lambda size: max(size, most)))
    sizes = [base * draw(st.integers(1, 6)) for _ in range(3)]
    policy = draw(
        st.sampled_from(
            [
                Fixed(sizes[0], base=base),
                Ramp(base, max(base + 1, sizes[0]), over=draw(st.floats(0.3, 2)), unit="epochs"),
                Schedule([(0, base), (0.4, sizes[0]), (1.1, sizes[1])], unit="epochs", base=base),
                Clamp(Trace(sizes * 500, base=base), low=base, high=6 * base),
            ]
        )
    )
    return Run(
        samples=draw(st.integers(20 * base, 20 * base + 30)),
        seed=draw(st.integers(0, 99)),
        policy=policy,
        rule=as_rule(draw(st.sampled_from(RULES))),
        micro=draw(st.integers(1, 64)),
        learners=draw(st.integers(1, 2)),
    )


def histories(most: int) -> st.SearchStrategy[list[Any]]:
    steps, size, bits = st.integers(0, 3), st.integers(1, most), st.integers(0, 2**most - 1)
    lose = st.builds(
        Lose,
        steps=steps,
        exchange=st.integers(0, 8),
        victims=st.integers(1, 2**most - 1),
        receivers=bits,
        newcomers=st.integers(0, 2),
    )
    others = [st.builds(Resize, steps=steps, size=size), st.builds(Save, steps), st.builds(Stop, steps, size)]
    return st.lists(st.one_of(lose, lose, lose, *others), min_size=1, max_size=8)


def check_history(data: st.DataObject) -> None:
    most = data.draw(st.integers(2, 6), label="most replicas")
    run = data.draw(runs(most), label="run")
    events, size = data.draw(histories(most), label="events"), data.draw(st.integers(1, most) | st.just(most))
    history = History(run, list(events), size=size, most=most)
    path = history.play()
    for name in ("lost", "torn", "resize", "save", "stop", "restarted"):
        event(f"{name}: {history.counts.get(name, 0) > 0}")
    orders = [Shuffled(run.samples, seed=run.seed, epoch=epoch) for epoch in range(EPOCHS)]
    taken = [index for epoch, start, stop, *_ in path for index in orders[epoch].indices(start, stop).tolist()]
    whole = [index for order in orders for index in order.indices(0, run.samples).tolist()]
    assert taken == whole, "none lost, none repeated, one order"
    assert path == straight(run), "batches, factors, gains and progress as if nothing had happened"


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_history_ends_where_the_undisturbed_run_ends(data: st.DataObject) -> None:
    check_history(data)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(data=st.data())
def test_after_any_history_every_sample_was_committed_once_in_one_order_with_the_factors_of_a_straight_path(
    data: st.DataObject,
) -> None:
    check_history(data)
