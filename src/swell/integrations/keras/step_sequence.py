"""The steps of a Keras run in order: planned when they are read, trained, committed; saved and resumed.

``fit`` may read data ahead of the step it trains, as it does by a pass on an accelerator with JAX. So step ``k`` is
planned when its first pass is read, from what was measured up to step ``k - 2`` and from positions, which are known in
advance. Nothing depends on how far ahead a backend happens to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from swell.core.protocols import Policy, Rule
from swell.core.types import NoiseEstimate
from swell.errors import LoopError
from swell.integrations.keras.device_grid import DeviceGrid
from swell.integrations.keras.noise_meter import NoiseMeter, Readings
from swell.integrations.keras.run_counts import RunCounts
from swell.integrations.keras.step import Step
from swell.integrations.keras.step_planner import StepPlanner
from swell.loop.statistics import Statistics

LAG = 2  # steps between a measurement and the first step that is planned by it


class StepSequence:
    """Hands out steps to read and to train, and counts those that were trained."""

    def __init__(
        self,
        policy: Policy,
        rule: Rule,
        *,
        length: int,
        seed: int,
        micro: int | None = None,
        statistics: Statistics | None = None,
        drop_last: bool = False,
    ) -> None:
        self.trained, self._planned = (
            RunCounts(policy, length=length, seed=seed, micro=micro, drop_last=drop_last) for _ in range(2)
        )
        self._meter = NoiseMeter(base_batch=policy.base)
        self.planner = StepPlanner(policy, rule, statistics=statistics, meter=self._meter)
        self.gain = 1.0  # of the last step
        self.is_training = False  # whether a fit is under way
        self._devices_before: int | None = None  # on which the last step was trained, by this process or another
        self._readers = 0
        self.restart()

    @property
    def noise(self) -> NoiseEstimate | None:
        """The gradient noise, as far as its figures were read."""
        return self.planner.noise

    def place(self, grid: DeviceGrid) -> None:
        """Say where the steps are computed that are planned after the next restart."""
        self.planner.grid, self.trained.pace.devices = grid, grid.devices

    # Reading ahead

    def restart(self) -> int:
        """Read from what was trained; returns a token. Readers that hold an older one come to their end."""
        self._readers += 1
        self._planned.start_from(self.trained)
        if self._planned.ledger.remaining == 0:
            self._planned.ledger.next_epoch()
        if self._devices_before not in (None, self.planner.grid.total):
            self._planned.pace.enter_world()
        self._is_new_reader = True
        self._to_read: deque[Step] = deque()
        self._to_train: deque[Step] = deque()
        return self._readers

    def attach(self) -> int:
        """The token of a reader that starts now."""
        return self._readers if self.is_training else self.restart()

    def step_to_read(self, token: int) -> Step | None:
        """The next step to read samples for; None at the end of the epoch or the run, or for an older reader."""
        if token == self._readers and (self._to_read or self._plan_next()):
            return self._to_read.popleft()
        return None

    def step_to_train(self) -> Step | None:
        """The next step to train, planned now if it was not read yet; None at the end of the epoch or the run."""
        if self._to_train or self._plan_next():
            return self._to_train.popleft()
        return None

    def is_unread(self, step: Step) -> bool:
        """Whether nobody has read the step's samples, though it is being trained."""
        return any(waiting.index == step.index for waiting in self._to_read)

    def _plan_next(self) -> bool:
        number, trained = self._planned.pace.step, self.trained.pace.step
        if trained < number - LAG + 1:
            raise LoopError(
                f"step {number} was asked for after {trained} steps were trained; expected {number - LAG + 1} or more. "
                "Train with model.fit(elastic.data(...), callbacks=[elastic]) and steps_per_execution=1."
            )
        self._meter.learn(number - LAG)
        step = self.planner.next_step(self._planned, skip_rest=self._is_new_reader)
        self._is_new_reader = False
        if step is None:
            return False
        self._planned.advance(step)
        self._to_read.append(step)
        self._to_train.append(step)
        return True

    # What was trained

    def commit(self, step: Step, read: Callable[[], Readings], *, step_s: float) -> None:
        """Count a step as trained; ``read`` gives the figures of a measured one later."""
        self.trained.advance(step)
        self.trained.pace.timed(step_s)
        self.gain, self._devices_before = step.gain, self.planner.grid.total
        if step.measured:
            self._meter.add(step, read, samples=self.trained.ledger.samples)

    def drain(self) -> None:
        """Read the figures of every step that was trained."""
        self._meter.learn(self.trained.pace.step)

    def state_dict(self) -> dict[str, Any]:
        """Counts and moments, as plain numbers; the same on every process."""
        self.drain()
        return {
            **self.trained.state_dict(),
            **self._meter.state_dict(),
            "replicas": self.planner.grid.total,
            "iterations": self.planner.iterations,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state, on any number of devices."""
        state = state if "pace" in state else _from_format_1(state)
        self.trained.load_state_dict(state)
        self._meter.load_state_dict(state)
        self._devices_before = int(state["replicas"])
        self.planner.iterations = int(state["iterations"])
        self.restart()


def _from_format_1(state: dict[str, Any]) -> dict[str, Any]:
    """A state of the first format, in which a pace's counts stood beside the others."""
    names = ("step", "progress", "batch", "batch_since", "profile")
    return {
        **state,
        "pace": {
            **{name: state[name] for name in names},
            "micro_seen": state["micro"],
            "max_micro": None,
            "layout": None,
        },
    }
