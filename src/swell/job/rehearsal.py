"""A run that only measures: the user's script as it is, with weights that do not move, ended when enough is known."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from swell.core.layout_times import LayoutTimes
from swell.core.protocols import Policy, Sink
from swell.core.types import Layout, NoiseEstimate, Observation, StepTimes
from swell.errors import ConfigError
from swell.job.peers import Peers
from swell.job.run_state import RunState
from swell.loop.statistics import Statistics

Micro = int | tuple[int | None, int | None] | None
# Why measuring ended: by the figures, the clock or the script; or nothing was to be measured.
Ended = Literal["sure", "time", "script", "asked"]

EVERYTHING = 1e9  # base batches, or parts: nothing is forgotten
WARM_UP = 2  # steps of each turn that are not timed
SO_FAR = 20  # steps between two writes of the findings, in case the script ends before enough is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearse:
    """What to measure and when to stop; travels to the script's process as JSON."""

    out: str  # where the findings go
    seconds: float = 60.0  # no longer than this, but every layout once
    after: int = 0  # steps to train before measuring
    layouts: tuple[tuple[int, int], ...] = ()  # (global batch, micro-batch) to go through; none: as the script says
    repeats: int = 3  # measured steps of each, at a turn
    ask: bool = False  # measure nothing: only say what the script has, its base batch and the largest it allows
    branch: bool = False  # compare base steps and large ones from one state
    steps: int = 96  # base steps of a branch
    max: int | None = None  # the largest batch of a branch; None for the script's, or what its data allows
    checkpoint: str | None = None  # to branch from; None for the newest of the script's run folder, if it has one

    @property
    def turn(self) -> int:
        """Steps of one layout before it is another's turn."""
        return self.repeats + WARM_UP

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Rehearse:
        """The order that ``to_json`` wrote."""
        try:
            order = json.loads(text)
            return cls(**{**order, "layouts": tuple(map(tuple, order.get("layouts", ())))})
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"SWELL_REHEARSE is {text!r}; expected what `swell noise` or `swell tune` write. Unset it."
            ) from error


@dataclass(frozen=True)
class RoundOfLayouts:
    """The script's policy, but it goes through given layouts, several steps of each, and then round again."""

    policy: Policy
    layouts: tuple[tuple[int, int], ...]
    turn: int  # steps of each
    after: int

    @property
    def base(self) -> int:
        return self.policy.base

    def layout(self, seen: Observation) -> Layout:
        """The layout whose turn it is."""
        turn = max(0, seen.step - self.after) // self.turn
        batch, micro = self.layouts[turn % len(self.layouts)]
        return Layout(global_batch=batch, micro_batch=micro)

    def batch(self, seen: Observation) -> int:
        return self.layout(seen).global_batch

    def finished(self, seen: Observation) -> bool:
        """Never: measuring ends by its figures or by the clock, however short the script's own trace is."""
        return False


class NoRehearsal:
    """An ordinary run: everything as the script says, and no end but the script's own."""

    rehearses = False
    sinks: tuple[Sink, ...] = ()

    def folder(self, run_dir: Path | None) -> Path | None:
        """The script's own."""
        return run_dir

    def begin(self, state: RunState, peers: Peers) -> None:
        """The run begins as it does."""

    def measures(self) -> bool:
        """Whenever the statistics say so."""
        return True

    def policy(self, policy: Policy) -> Policy:
        """The script's own."""
        return policy

    def bounds(self, micro: Micro, constant: bool) -> tuple[Micro, bool]:
        """The script's own."""
        return micro, constant

    def statistics(self, statistics: Statistics | None) -> Statistics | None:
        """The script's own."""
        return statistics

    def trains(self, step: int) -> bool:
        """Weights move at every step."""
        return True

    def after_step(self, state: RunState, peers: Peers) -> bool:
        """The script goes on."""
        return False


class Rehearsal:
    """Watches a job's steps and says when enough is known; writes the findings to a file."""

    rehearses = True
    sinks: tuple[Sink, ...] = ()

    def __init__(self, order: Rehearse) -> None:
        self._order, self._began = order, time.monotonic()
        self._times = LayoutTimes()
        self._latest: StepTimes | None = None  # the time that was counted last
        self._own: Policy | None = None  # the script's policy

    def folder(self, run_dir: Path | None) -> Path | None:
        """None: nothing is saved, logged or resumed."""
        return None

    def begin(self, state: RunState, peers: Peers) -> None:
        """The run begins as it does."""

    def measures(self) -> bool:
        """Whenever the statistics say so."""
        return True

    def policy(self, policy: Policy) -> Policy:
        """The script's own policy, or one that goes through the layouts of the order."""
        order, self._own = self._order, policy
        if not order.layouts:
            return policy
        return RoundOfLayouts(policy, order.layouts, order.turn, order.after)

    def bounds(self, micro: Micro, constant: bool) -> tuple[Micro, bool]:
        """The script's bounds on micro-batches; none where layouts are ordered, which were chosen within others."""
        return (None, False) if self._order.layouts else (micro, constant)

    def statistics(self, statistics: Statistics | None) -> Statistics | None:
        """Where only noise is ordered, every step is measured, and split if it must be."""
        if self._order.layouts:
            if statistics is None or statistics.split_every != 1:
                return statistics
            return replace(statistics, split_every=2)  # the time of a split step says nothing
        everything = {"every": 1, "alone": "split", "split_every": 1, "window": EVERYTHING, "on_demand": False}
        return replace(statistics or Statistics(), **everything)

    def trains(self, step: int) -> bool:
        """Whether the weights still move at this step."""
        return step < self._order.after

    def after_step(self, state: RunState, peers: Peers) -> bool:
        """Whether enough is known or the time is over; the findings are then written."""
        measured = state.steps - self._order.after
        for learner in state.learners:
            for average in (learner.noise.plain, learner.noise.metric):
                average.share = EVERYTHING  # the weights do not move, so old figures are as good as new ones
                if measured == 0:
                    average.reset()
        if self._order.ask:
            ended: Ended | None = "asked"
        elif self._order.layouts:
            ended = self._after_layout(state, peers, measured)
        else:
            ended = self._after_noise(state, peers, measured)
        if ended is not None:
            self._write(state, peers, ended)
        return ended is not None

    def _after_noise(self, state: RunState, peers: Peers, measured: int) -> Ended | None:
        noise = state.noise
        if noise is not None and measured > 0 and measured % SO_FAR == 0:
            self._write(state, peers)
        if noise is not None and noise.sure and measured >= 50:
            return "sure"
        return "time" if self._time_is_over(peers) else None

    def _after_layout(self, state: RunState, peers: Peers, measured: int) -> Ended | None:
        """Rounds go on until all times and the noise are sure, or the time is over; there is at least one."""
        layouts, turn = self._order.layouts, self._order.turn
        times = state.pace.latest_times  # of the step before the latest, on which the replicas have just agreed
        if times is not None and times is not self._latest:
            self._latest = times
            number, place = divmod(measured - 2, turn)
            if number >= 0 and place >= WARM_UP:
                self._times.add(times, batch=layouts[number % len(layouts)][0], turn=number)
        if measured <= len(layouts) * turn or (measured - 1) % turn:  # a turn's last step is timed in the next one
            return None
        self._write(state, peers)  # so far: the script may end before the rehearsal does
        if self._times.sure(len(set(layouts))) and (state.noise is None or state.noise.sure):
            return "sure"
        return "time" if self._time_is_over(peers) else None

    def _time_is_over(self, peers: Peers) -> bool:
        """On any replica: all of them end after the same step."""
        over = time.monotonic() - self._began >= self._order.seconds
        return any(row[0] for row in peers.collective.gather_numbers([float(over)]))

    def _write(self, state: RunState, peers: Peers, ended: Ended = "script") -> None:
        if peers.is_first:
            Path(self._order.out).write_text(json.dumps({**self._findings(state, peers), "ended": ended}))

    def _findings(self, state: RunState, peers: Peers) -> dict[str, Any]:
        return {
            "base": state.pace.base,
            "max": getattr(self._own, "max", None),
            "epoch_size": state.data.epoch_size,
            "max_micro": state.pace.max_micro,  # where memory ran out
            "replicas": peers.size,
            "steps": state.steps,
            "noise": noise_findings(state.noise),
            "worth_power": state.learners[0].worth_power if state.learners else 1.0,
            "profile": self._profile(state),
        }

    def _profile(self, state: RunState) -> list[dict[str, Any]]:
        if not self._order.layouts:
            return [asdict(summary) for summary in state.pace.profile.summaries()]
        layouts = self._times.measured()
        return [{**asdict(one.summary), "batch": one.batch, "error": _plain(one.error)} for one in layouts]


def noise_findings(noise: NoiseEstimate | None) -> dict[str, Any] | None:
    """What is known of the noise, as JSON has it."""
    if noise is None:
        return None
    return {
        "signal": noise.total.signal,
        "noise": noise.total.noise,
        "interval": [_plain(end) for end in noise.interval],
        "observations": noise.observations,
        "sure": noise.sure,
    }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
