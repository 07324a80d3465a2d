"""The state of a run: everything that cannot be recomputed, with one owner, the same on every replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from swell.core.early_stopping import EarlyStopping
from swell.core.growth_watch import GrowthWatch
from swell.core.ledger import Ledger
from swell.core.protocols import Stateful
from swell.core.types import Factors, NoiseEstimate
from swell.errors import CheckpointError, LoopError, SwellError
from swell.job.learner import Learner
from swell.job.script_settings import changed_settings
from swell.job.shared_values import SharedValues
from swell.job.training_data import TrainingData
from swell.loop.measuring_budget import MeasuringBudget
from swell.loop.metrics import Metrics
from swell.loop.milestones import Milestones
from swell.loop.pace import Pace


@dataclass(slots=True)
class Marks:
    """Where the run is, beyond samples and steps; replicas agree on all of it."""

    measured_at: int = 0  # samples at the last measured step
    # Collective actions completed: the replica with the larger count is ahead. Only Committer and Recovery raise it.
    rounds: int = 0
    stepped: set[int] = field(default_factory=set)  # optimizers that have stepped in a step that is not committed
    stepped_batch: int = 0  # the batch of that step
    closed_epoch: int = -1  # the epoch whose pass over the data was ended by all
    body_done: bool = False  # whether the run was resumed after the body of its epoch
    gain: float = 1.0  # of the latest step
    factors: tuple[Factors, ...] = ()  # of the latest step, one for each parameter group

    def state_dict(self) -> dict[str, Any]:
        """The marks by the names they have in checkpoints."""
        return {
            "measured_at": self.measured_at,
            "units": self.rounds,
            "partial": sorted(self.stepped),
            "partial_batch": self.stepped_batch,
            "closed": self.closed_epoch,
            "gain": self.gain,
            "factors": [asdict(factors) for factors in self.factors],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.body_done = bool(state.get("done", False))  # in checkpoints only: a replica that joins runs the body
        self.measured_at = int(state["measured_at"])
        self.rounds = int(state["units"])
        self.stepped, self.stepped_batch = set(state["partial"]), int(state["partial_batch"])
        self.closed_epoch = int(state.get("closed", -1))
        self.gain = float(state.get("gain", 1.0))
        self.factors = tuple(Factors(**factors) for factors in state.get("factors", ()))


class RunState:
    """What a checkpoint holds and a newcomer receives; any number of replicas can continue from it."""

    data: TrainingData  # these two are there once ``train_on`` was called
    ledger: Ledger

    def __init__(self, pace: Pace, *, seed: int, run_dir: Path | None, settings: str) -> None:
        self.pace, self.seed, self.run_dir = pace, seed, run_dir
        self.settings = settings  # in lines that two replicas can compare
        self.metrics = Metrics()
        self.growth = GrowthWatch(base_batch=pace.base)
        self.stopping: EarlyStopping | None = None  # a metric that may end the run
        self.marks = Marks()
        self.measuring = MeasuringBudget()
        self.milestones = Milestones()
        self.learners: list[Learner] = []
        self.registered: dict[str, Stateful] = {}
        self.shared = SharedValues()

    def train_on(self, data: TrainingData) -> None:
        """Take the training data in, and the ledger that counts what was committed of it."""
        self.data, self.ledger = data, data.ledger

    @property
    def has_data(self) -> bool:
        """Whether the job has training data yet."""
        return "data" in vars(self)

    def __getattr__(self, name: str) -> Any:
        if name in ("data", "ledger"):
            raise LoopError("the job has no training data yet. Call job.loader(dataset) before the loop.")
        raise AttributeError(f"a run's state has no {name!r}")

    @property
    def steps(self) -> int:
        """Optimizer steps committed."""
        return self.pace.step

    @property
    def samples(self) -> int:
        """Samples committed, over all epochs."""
        return self.ledger.samples if self.has_data else 0

    @property
    def noise(self) -> NoiseEstimate | None:
        """What is known of the gradient's noise, by the first optimizer."""
        return self.learners[0].noise.estimate() if self.learners else None

    @property
    def position(self) -> tuple[int, int]:
        """Steps, and optimizers that have stepped in the one under way: grows with every update."""
        return self.pace.step, len(self.marks.stepped)

    @property
    def description(self) -> str:
        """The run in lines that two replicas can compare: settings, data and models."""
        models = "\n".join(learner.description for learner in self.learners)
        return f"{self.settings}\nlength {self.ledger.length}\n{models}"

    def capture(self) -> dict[str, Any]:
        """Everything as one nested value; the keys are those of the checkpoints' format."""
        for learner in self.learners:
            learner.noise.drain()
        return {
            "ledger": self.ledger.state_dict(),
            "stream": self.data.state_dict(),
            "pace": self.pace.state_dict(),
            "ending": self.marks.state_dict(),
            "measuring": self.measuring.state_dict(),
            "milestones": self.milestones.state_dict(),
            "metrics": self.metrics.state_dict(),
            "growth": self.growth.state_dict(),
            "stopping": None if self.stopping is None else self.stopping.state_dict(),
            "trainees": [learner.state_dict() for learner in self.learners],
            "registered": {name: thing.state_dict() for name, thing in self.registered.items()},
            "shared": self.shared.state_dict(epoch=self.ledger.epoch, position=str(self.ledger.cursor)),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a captured state; what was registered since then starts as it is."""
        if len(state["trainees"]) != len(self.learners):
            raise CheckpointError(
                f"the job has {len(self.learners)} optimizer(s); expected the {len(state['trainees'])} of the saved "
                f"state. Call job.wrap for the same models and optimizers as the run that saved it, or start in "
                f"another run folder."
            )
        self.ledger.load_state_dict(state["ledger"])
        self.data.load_state_dict(state.get("stream", {}))
        self.pace.load_state_dict(state["pace"])
        self.marks.load_state_dict(state["ending"])
        if "measuring" in state:  # not in checkpoints of earlier versions
            self.measuring.load_state_dict(state["measuring"])
        if "milestones" in state:
            self.milestones.load_state_dict(state["milestones"])
        else:  # saved before there were any
            counts = {"steps": self.steps, "samples": self.samples, "progress": self.pace.progress, "seconds": 0.0}
            self.milestones.pass_to(**counts, askable=True)
        self.metrics.load_state_dict(state["metrics"])
        if "growth" in state:  # not in checkpoints of version 1.0
            self.growth.load_state_dict(state["growth"])
        if self.stopping is not None and state.get("stopping") is not None:
            self.stopping.load_state_dict(state["stopping"])
        for learner, saved in zip(self.learners, state["trainees"], strict=True):
            try:
                learner.load_state_dict(saved)
            except SwellError:
                raise
            except (RuntimeError, ValueError, KeyError) as error:
                raise CheckpointError(
                    f"the run in {self.run_dir} has another model or optimizer than this script: {error}. Start in "
                    f"another run folder, or delete this one, to train from the start; or build the model and the "
                    f"optimizer that were saved."
                ) from error
        for name, saved in state["registered"].items():
            if name in self.registered:
                self.registered[name].load_state_dict(saved)
        self.shared.load_state_dict(state.get("shared", []))

    def catch_up(self, state: Mapping[str, Any]) -> None:
        """Take over the state of a replica that is ahead; metrics that it has read are read here too."""
        reads = self.metrics.reads
        self.restore(state)
        self.metrics.repeat_reads(self.metrics.reads - reads)

    def changed_settings(self, state: Mapping[str, Any]) -> list[str]:
        """A sentence for each setting of the script that differs from the one the saved run started with."""
        sentences, base = [], state["pace"].get("base", self.pace.base)
        if base != self.pace.base:
            sentences.append(f"the base batch is {self.pace.base} from here on, and was {base}.")
        for learner, saved in zip(self.learners, state["trainees"], strict=False):
            if saved.get("given") is not None:
                sentences += changed_settings(learner.settings, saved["given"], kept=not learner.takes_script_settings)
        return list(dict.fromkeys(sentences))
