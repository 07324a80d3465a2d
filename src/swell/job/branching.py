"""A rehearsal that branches: from one state some base steps and some large ones, compared on the same probe samples.

The script's own loop makes every step. Between two steps this rehearsal says where in the epoch the next one reads, how
large it is and whether weights move, and it puts the state back at the end of each branch.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from swell.checkpoint.reading import inspect
from swell.checkpoint.rng import capture_rng, restore_rng
from swell.checkpoint.store import Store
from swell.checkpoint.transfer import share_state
from swell.core.events import Event, Stepped
from swell.core.protocols import Policy
from swell.core.types import Observation
from swell.errors import CheckpointError
from swell.job.peers import Peers
from swell.job.rehearsal import EVERYTHING, Micro, Rehearse, noise_findings
from swell.job.run_state import RunState
from swell.loop.statistics import Statistics

DECAY = 24  # base steps in which the learning rate falls to 0 before a branch is judged
POINTS = 4  # at which the base branch is judged, beyond its start
PROBE = 4096  # samples at most that branches are judged by
FEWEST_DRAWS, MOST_DRAWS = 3, 8
FEWEST_NOISE, MOST_NOISE = 50, 400  # steps that measure the noise before the first branch
FEWEST_STEPS = 3  # of a large branch: a larger batch is not tried
FEWEST_BATCHES = 8  # base batches of a data set: for branches, their decay and the probe samples


class Turn(NamedTuple):
    """The next step."""

    batch: int
    start: int  # its first position in the epoch
    height: float = 1.0  # of the learning rate, relative to that of the state
    trains: bool = True
    measured: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Which positions of an epoch are for training, for the decay and for the probe, in this order."""

    base: int
    decay: int  # steps
    probe: int  # steps
    length: int  # samples

    @classmethod
    def of_epoch(cls, length: int, *, base: int) -> Field:
        """At most a quarter of the epoch each for decay and probe.

        >>> Field.of_epoch(1600, base=16).training
        816
        """
        quarter = length // (4 * base)
        return cls(base=base, decay=min(DECAY, quarter), probe=min(-(-PROBE // base), quarter), length=length)

    @property
    def training(self) -> int:
        """Positions of the epoch that branches train on."""
        return self.length - (self.decay + self.probe) * self.base

    def training_steps(self, batch: int, *, first: int = 0) -> Iterator[Turn]:
        """Steps that train, one after another from a position on; those that reach the end go on from the start."""
        while True:
            if first + batch > self.training:
                first = 0
            yield Turn(batch, first)
            first += batch

    def decay_steps(self) -> Iterator[Turn]:
        """Steps at the base batch with a learning rate that falls to 0."""
        for step in range(self.decay):
            yield Turn(self.base, self.training + step * self.base, height=1 - (step + 0.5) / self.decay)

    def probe_steps(self) -> Iterator[Turn]:
        """Steps that only compute the loss."""
        start = self.length - self.probe * self.base
        for step in range(self.probe):
            yield Turn(self.base, start + step * self.base, trains=False)


class _Losses:
    """Takes the loss of each step from the events of the first replica."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, Stepped) and event.loss is not None:
            self.seen.append(event.loss)

    def close(self) -> None:
        """There is nothing to close."""


class _BatchOfTurn:
    """Chooses the batch of the turn; that of the script before the first one."""

    def __init__(self, rehearsal: BranchRehearsal, base: int) -> None:
        self._rehearsal, self.base = rehearsal, base

    def batch(self, seen: Observation) -> int:
        """The batch of the turn."""
        turn = self._rehearsal.turn
        return self.base if turn is None else turn.batch


class BranchRehearsal:
    """Trains to the state to branch from, measures its noise, branches as often as the time allows."""

    rehearses = True

    def __init__(self, order: Rehearse) -> None:
        self._order, self._began = order, time.monotonic()
        self._source = None if order.checkpoint is None else Path(order.checkpoint)
        self._losses = _Losses()
        self._own: Policy | None = None
        self._first = 0  # steps of the checkpoint
        self._program: Iterator[Turn] | None = None
        self.turn: Turn | None = None
        self._start: dict[str, Any] = {}  # the state to branch from
        self._rng: dict[str, Any] = {}
        self._rates: list[list[float]] = []
        self._points: list[dict[str, Any]] = []

    # What the job asks before its loop

    @property
    def sinks(self) -> tuple[_Losses, ...]:
        """Where the losses of the steps go."""
        return (self._losses,)

    def folder(self, run_dir: Path | None) -> Path | None:
        """None, because nothing is written; a checkpoint in the script's folder is branched from."""
        if self._source is None:
            self._source = run_dir
        return None

    def policy(self, policy: Policy) -> Policy:
        """One that follows the branches."""
        self._own = policy
        return _BatchOfTurn(self, policy.base)

    def bounds(self, micro: Micro, constant: bool) -> tuple[Micro, bool]:
        """The script's own."""
        return micro, constant

    def statistics(self, statistics: Statistics | None) -> Statistics | None:
        """Every step that is measured is split if it must be; ``measures`` says which."""
        everything = {"every": 1, "alone": "split", "split_every": 1, "window": EVERYTHING, "on_demand": False}
        return replace(statistics or Statistics(), **everything)

    def measures(self) -> bool:
        """Whether the next step is measured: only before the first branch."""
        return self.turn is not None and self.turn.measured

    def trains(self, step: int) -> bool:
        """Whether the weights move in the next step."""
        return self._order.after > 0 if self.turn is None else self.turn.trains

    def begin(self, state: RunState, peers: Peers) -> None:
        """Continue from the checkpoint, if there is one; its folder is only read."""
        found, refusal = None, None
        if peers.is_first and self._source is not None:
            try:
                found = _load(self._source)
                if found is None and self._order.checkpoint is not None:
                    raise CheckpointError(
                        f"--checkpoint is {self._order.checkpoint!r}; expected a run folder with a checkpoint, or a "
                        f"checkpoint. Give one, or leave it out for the run folder of the script."
                    )
            except CheckpointError as error:
                refusal = error
        flags = peers.collective.gather_numbers([float(found is not None), float(refusal is not None)])[0]
        if flags[1]:
            raise refusal or CheckpointError("the first replica was refused the checkpoint: see its message.")
        if flags[0]:
            found = share_state(found, collective=peers.collective, source=0)
            assert found is not None
            found.pop("rng", None)
            state.restore(found)
            self._first = state.steps

    # Between two steps

    def after_step(self, state: RunState, peers: Peers) -> bool:
        """Whether all branches are done; otherwise the next step is laid down, and the findings are written."""
        if self._program is None:
            if state.steps - self._first < max(1, self._order.after):
                return False
            self._program = self._branches(state, peers)
        self.turn = next(self._program, None)
        if self.turn is None:
            return True
        self._place(state, self.turn)
        return False

    def _branches(self, state: RunState, peers: Peers) -> Iterator[Turn]:
        size, base = state.data.epoch_size, state.pace.base
        refusal = _refusal(state)
        if refusal is not None or size is None:
            self._write(state, peers, refusal=refusal)
            return
        field = Field.of_epoch(size, base=base)
        self._hold(state)
        yield from self._measure_noise(state, field)
        most = self._order.max or getattr(self._own, "max", None) or size
        scales = _scales(min(most, field.training // 2) // base, self._order.steps)
        for draw in range(MOST_DRAWS):
            if draw >= FEWEST_DRAWS and self._time_is_over(peers):
                break
            for scale in (1, *scales):
                yield from self._branch(state, field, draw=draw, scale=scale)
            self._write(state, peers)

    def _measure_noise(self, state: RunState, field: Field) -> Iterator[Turn]:
        """Measure the noise of the state to branch from, for the rule that lets the learning rate follow the batch."""
        for learner in state.learners:
            learner.noise.reset()
            for average in (learner.noise.plain, learner.noise.metric):
                average.share = EVERYTHING  # the weights do not move, so old figures are as good as new ones
        for step, turn in zip(range(MOST_NOISE), field.training_steps(field.base), strict=False):
            if step >= FEWEST_NOISE and state.noise is not None and state.noise.sure:
                break
            yield turn._replace(trains=False, measured=True)
        for learner, saved in zip(state.learners, self._start["trainees"], strict=True):
            learner.noise.drain()
            saved.update(copy.deepcopy(learner.noise.state_dict()))

    def _branch(self, state: RunState, field: Field, *, draw: int, scale: int) -> Iterator[Turn]:
        """One branch, judged after some numbers of steps; each time it decays, and goes on from before the decay."""
        batch, steps = scale * field.base, self._order.steps
        training = field.training_steps(batch, first=draw * (field.training // MOST_DRAWS))  # other samples each time
        counts = [steps * point // POINTS for point in range(POINTS + 1)] if scale == 1 else [steps, 2 * steps]
        done, state_of_branch = 0, self._start
        for count in sorted({-(-count // scale) for count in counts}):
            self._restore(state, state_of_branch)
            yield from islice(training, count - done)
            done = count
            state_of_branch = self._copy(state)
            restore_rng(self._rng)  # so that all branches decay and are judged with the same dropout
            yield from field.decay_steps()
            _drain(state)
            before = len(self._losses.seen)
            yield from field.probe_steps()
            _drain(state)
            losses = self._losses.seen[before:]
            if losses:  # on the first replica
                self._points.append({"draw": draw, "batch": batch, "steps": count, "loss": sum(losses) / len(losses)})

    # The state

    def _hold(self, state: RunState) -> None:
        """Remember the state to branch from. Learning rates stay there: branches follow no schedule."""
        self._start, self._rng = self._copy(state), capture_rng()
        groups = [learner.optimizer.param_groups for learner in state.learners]
        self._rates = [[float(group["lr"]) for group in of_one] for of_one in groups]
        for learner in state.learners:
            learner.schedule = None

    def _copy(self, state: RunState) -> dict[str, Any]:
        return copy.deepcopy(state.capture())

    def _restore(self, state: RunState, held: Mapping[str, Any]) -> None:
        """Put weights, optimizers and noise back; a copy, because an optimizer keeps the tensors it is given."""
        for learner, saved in zip(state.learners, held["trainees"], strict=True):
            learner.load_state_dict(copy.deepcopy(saved))
        for name, saved in held["registered"].items():
            state.registered[name].load_state_dict(copy.deepcopy(saved))

    def _place(self, state: RunState, turn: Turn) -> None:
        """Let the next step begin at its position, as the step that follows the state to branch from."""
        ledger = self._start["ledger"]
        samples = max(ledger["samples"], ledger["length"])  # a ledger wants no fewer than it has read of an epoch
        state.ledger.load_state_dict({**ledger, "cursor": turn.start, "samples": samples})
        state.pace.load_state_dict({**self._start["pace"], "max_micro": state.pace.max_micro})
        state.marks.measured_at = samples
        for learner, rates in zip(state.learners, self._rates, strict=True):
            for group, rate in zip(learner.optimizer.param_groups, rates, strict=True):
                _set_rate(group, rate * turn.height)

    # The findings

    def _time_is_over(self, peers: Peers) -> bool:
        over = time.monotonic() - self._began >= self._order.seconds
        return any(row[0] for row in peers.collective.gather_numbers([float(over)]))

    def _write(self, state: RunState, peers: Peers, *, refusal: str | None = None) -> None:
        if not peers.is_first:
            return
        findings = {
            "base": state.pace.base,
            "replicas": peers.size,
            "at_step": self._start["pace"]["step"] if self._start else state.steps,
            "steps": self._order.steps,
            "points": self._points,
            "noise": noise_findings(state.noise),
            "worth_power": state.learners[0].worth_power if state.learners else 1.0,
            "refusal": refusal,
        }
        Path(self._order.out).write_text(json.dumps(findings))


def _load(source: Path) -> dict[str, Any] | None:
    """A checkpoint, or the newest one of a run folder; None without one."""
    if (source / "manifest.json").is_file():
        return Store(source.parent.parent).load(inspect(source))
    newest = Store(source).load_newest()
    return None if newest is None else newest[1]


def _scales(most: int, steps: int) -> list[int]:
    """Powers of two up to ``most`` base batches, as long as a branch has a few steps.

    >>> _scales(100, steps=96)
    [2, 4, 8, 16, 32]
    """
    return [2**power for power in range(1, 31) if 2**power <= most and 2**power * FEWEST_STEPS <= steps]


def _refusal(state: RunState) -> str | None:
    """Why a job cannot branch."""
    size, base = state.data.epoch_size, state.pace.base
    if size is None:
        return "the data is a stream; expected a data set whose samples can be read again. Leave out --branch."
    if size < FEWEST_BATCHES * base:
        return (
            f"the data set has {size} samples; expected at least {FEWEST_BATCHES} base batches of {base}. Leave out "
            f"--branch."
        )
    if any(learner.sharded for learner in state.learners):
        return "the model is sharded; expected one that every replica holds whole. Leave out --branch."
    return None


def _drain(state: RunState) -> None:
    """Wait for losses that are still on their way from the device."""
    for learner in state.learners:
        learner.noise.drain()


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
