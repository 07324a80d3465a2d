"""The batch and the micro-batch that make most progress per second on the workers there are now."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from swell.core.feasibility import MicroBounds, batch_at_least, batch_at_most
from swell.core.goodput import Candidates, Outlook, best, candidates, goodput, layouts, outlook
from swell.core.moments import efficiency
from swell.core.throughput import Fit, Prediction, fit
from swell.core.types import Decision, Layout, Observation, StepSummary
from swell.core.world_bounds import WorldBounds, batches_on, largest_batch, world_bounds
from swell.errors import ConfigError
from swell.policies.arguments import as_whole, assign, flag, number, samples
from swell.policies.goodput_reasons import Choice, decision
from swell.policies.goodput_trials import (
    SETTLED,
    larger_batch,
    longest_run,
    measured,
    measured_here,
    other_size,
    spent_on_trials,
)

_DWELL, _SETTLED_DWELL = 8, 24  # steps at one batch before the next change, on trial and once it is no trial any more
_HOPE = 0.25  # the most by which a layout nobody has measured may be thought better than predicted
_HORIZON = 3000  # base steps a run of unknown length is taken to have
_LONG = 16  # dwells after which half of the hysteresis will do
_ENTERED = 0.8  # the part of the slack that a choice uses up, so that it is not left again at once
_FEWER = 1.25  # how much larger a batch must be to be chosen for its fewer steps
_GROWTH_AUTO, _GROWTH = 2, 4  # how far beyond the largest micro-batch that was measured the next may reach


@dataclass(frozen=True, slots=True)
class Goodput:
    r"""The batch, and its layout, with the highest goodput between ``base`` and ``max``.

    .. math:: \mathrm{goodput}(B) = \frac{B}{T} \cdot \frac{\varphi + B_0}{\varphi + B}

    Samples a second, by a law fitted to the steps measured so far (:mod:`swell.core.throughput`), times what a sample
    is worth at that batch, by the gradient noise scale :math:`\varphi`. A larger batch uses the machine better and each
    sample worse; the noise grows while the loss falls, so the batch does too.

    ``base`` is the batch the learning rate was tuned for, ``max`` a hard limit, as are an epoch's samples. ``micro``
    says what one replica may hold at once: ``"auto"`` tries larger ones step by step, up to where memory runs out;
    ``(low, high)`` keeps to these bounds; a number keeps to that one size (compiled models, batch norm); None sets no
    bound. Without ``max`` such sizes bound the batch by themselves: ``high`` samples a replica, or ``base`` where that
    is more. ``worlds`` says what the bounds allow on how many replicas.

    It acts on a noise scale that is sure of itself (``NoiseEstimate.sure``); until then the batch only grows, by what
    the noise scale is at least, and trials are taken back. A change must promise ``hysteresis`` more goodput (half of
    that after a long stay, a quarter while a layout is on trial), and ``dwell`` samples must have passed since the last
    one (unless given: 24 steps, or eight where a layout is on trial); a change of the world is answered at once.
    ``explore`` is the part of the run, in samples, that may go into trials: the same batch in other micro-batches, to
    learn what a sample costs, and layouts that may be better than predicted. Near its peak goodput is flat, and a
    larger batch reaches the target in fewer steps: ``slack`` is the part of the best goodput that may be given up for
    that, so of all layouts within it the largest batch is chosen; with 0 goodput alone decides. It does not go below
    ``base`` unless ``shrink``, nor ever down if ``monotone``.

    The choice is a function of the observation alone, so a log can be replayed; ``explain`` gives its reasons.
    Reference: Qiao et al., Pollux, OSDI 2021, section 4, https://arxiv.org/abs/2008.12260

    >>> from swell.policies import Goodput
    >>> Goodput(128, max=4096).micro
    'auto'
    """

    follows_noise: ClassVar[bool] = True
    base: int
    _: KW_ONLY
    max: int | None = None
    micro: tuple[int, int] | int | Literal["auto"] | None = "auto"
    hysteresis: float = 0.03
    dwell: int | None = None
    explore: float = 0.05
    slack: float = 0.08
    shrink: bool = False
    monotone: bool = False

    def __post_init__(self) -> None:
        assign(self, base=samples(self.base, "base"), micro=_micro(self.micro))
        if self.max is not None:
            assign(self, max=samples(self.max, "max", example=16 * self.base))
        assign(self, hysteresis=number(self.hysteresis, "hysteresis", least=0, example=0.03))
        assign(self, explore=number(self.explore, "explore", least=0, example=0.05))
        assign(self, slack=number(self.slack, "slack", least=0, example=0.08))
        assign(self, shrink=flag(self.shrink, "shrink"), monotone=flag(self.monotone, "monotone"))
        if self.dwell is not None:
            assign(self, dwell=samples(self.dwell, "dwell", least=0))
        self._require_bounds()
        if self.explore > 1:
            raise ConfigError(f"explore is {self.explore}; expected a part of the run, 0 to 1. Give 0.05 for 5 %.")
        if self.slack >= 1:
            raise ConfigError(f"slack is {self.slack}; expected a part of the goodput, 0 to 1. Give 0.05 for 5 %.")

    def _require_bounds(self) -> None:
        """There is a bound, and some batch within the bounds on some number of replicas."""
        if self.max is None and self._local is None:
            raise ConfigError(
                f"max is not given and micro={self.micro!r} bounds nothing; expected a limit to the batch. Give the "
                f"largest global batch, for example max={16 * self.base}, or bounds for one replica, micro=(16, 256)."
            )
        if self.max is not None and self.base > self.max:
            raise ConfigError(
                f"max is {self.max}, below base = {self.base}; expected bounds that do not cross. "
                f"Raise max to {self.base} or more."
            )
        alone = self.worlds([1])[0]  # whatever fits on more replicas fits on one
        if alone.batches is None:
            raise ConfigError(
                f"base={self.base}, max={self.max} and micro={self.micro} leave no batch in any world; expected one "
                f"that some number of replicas can compute: {alone.reason}"
            )

    def worlds(self, among: Iterable[int]) -> list[WorldBounds]:
        """For each number of replicas the smallest and the largest batch there, or which bounds rule it out.

        >>> for world in Goodput(128, max=1000, micro=(100, 500)).worlds([4, 10, 11]):
        ...     print(world.replicas, world.batches)
        4 (400, 1000)
        10 (1000, 1000)
        11 None
        """
        return world_bounds(among, base=self.base, max_batch=self.max, micro=self._local, shrink=self.shrink)

    def batch(self, seen: Observation) -> int:
        return self._choose(seen).layout.global_batch

    def layout(self, seen: Observation) -> Layout:
        """The global batch of the next step with its largest micro-batch."""
        return self._choose(seen).layout

    def explain(self, seen: Observation) -> Decision:
        """The same choice with its reasons and what was predicted for it."""
        return decision(self._choose(seen), seen, base=self.base)

    def speedup(self, seen: Observation, replicas: Iterable[int]) -> dict[int, float]:
        """Goodput on other numbers of replicas relative to now, each at its best; 0 where no batch fits."""
        return {count: there.speedup for count, there in self.outlook(seen, replicas).items()}

    def outlook(self, seen: Observation, replicas: Iterable[int]) -> dict[int, Outlook]:
        """The speedup on other numbers of replicas, with the error to expect of it.

        While the noise scale is not sure, the batch is taken to stay where it can. Empty while no step was measured.
        """
        if not seen.profile:
            return {}
        noise_scale = None if seen.noise is None else seen.noise.trusted
        micro, stays = self._micro_bounds(seen), noise_scale is None
        return outlook(
            _fit(seen.profile),
            replicas=replicas,
            now=(seen.replicas, seen.nodes),
            base=self.base,
            max_batch=lambda count: self._held(seen.batch, count, micro) if stays else self._most(seen, count, micro),
            noise_scale=math.inf if noise_scale is None else noise_scale,
            micro=micro,
            shrink=self.shrink,
        )

    def _choose(self, seen: Observation) -> Choice:
        micro = self._micro_bounds(seen)
        held = self._held(seen.batch, seen.replicas, micro)
        here = layouts(held, replicas=seen.replicas, micro=micro, capacity=seen.capacity)
        forced = seen.resized or held != seen.batch or (seen.micro_batch or 0) > micro[1]
        standing = _find(here, seen.micro_batch)
        if standing is None and not forced:
            standing = 0  # the first step of a process, or one after a step that was cut short
        stay = Choice(rule="start", layout=here.layout(standing or 0))
        if not seen.profile:
            return stay
        budget = self.explore * (seen.total_samples or max(seen.samples, _HORIZON * self.base))
        size = other_size(seen, here) if seen.samples < budget else None
        if size is not None:
            return stay._replace(rule="probe", layout=here.layout(size))
        trying = not forced and spent_on_trials(seen) < budget
        noise_scale, sure = _noise_scale(seen)
        if noise_scale is None:
            rule, options = "unsure", here
        elif not forced and self._dwelling(seen):
            rule, options = "dwell", here
        else:
            lowest = self._lowest(seen, held, sure=sure, forced=forced)
            rule, options = "weigh", self._options(seen, micro, held, lowest=lowest)
            larger = larger_batch(seen, options, held) if trying and (sure or noise_scale >= held) else None
            if larger is not None:
                return stay._replace(rule="reach", layout=options.layout(larger), noise_scale=noise_scale, sure=sure)
        if len(options) == 1 and standing is not None:
            return stay._replace(rule=rule)
        found = self._weigh(seen, stay._replace(rule=rule, noise_scale=noise_scale, sure=sure), options, trying=trying)
        return found if standing is None else self._compared(seen, found, here, standing, forced=forced)

    def _weigh(self, seen: Observation, stay: Choice, options: Candidates, *, trying: bool) -> Choice:
        """The best of the options, by what is predicted and, where something may be tried, by what may be hoped."""
        phi = math.inf if stay.noise_scale is None else stay.noise_scale  # of one batch only the time differs
        times = _times(seen.profile, seen.replicas, seen.nodes, options)
        value = goodput(options.global_batch, times.step_s, self.base, phi)
        hope = np.where(measured(seen, options), 0.0, np.minimum(times.error, _HOPE)) if trying else 0 * value
        if seen.done is not None:  # what is learnt pays for the rest of the run only
            hope = hope * (1 - seen.done)
        top, hoped = best(value), best(value * (1 + hope))
        highest = float(value[top])
        if value[hoped] * (1 + hope[hoped]) > highest * (1 + self.hysteresis / 4):
            top = hoped
        else:
            top, hope = self._largest(options, value), 0 * value
        return stay._replace(
            layout=options.layout(top),
            step_s=float(times.step_s[top]),
            error=float(times.error[top]),
            goodput=float(value[top]),
            best_goodput=highest,
            hope=float(hope[top]),
        )

    def _largest(self, options: Candidates, value: np.ndarray) -> int:
        """The largest batch whose goodput is well within the slack, in its best layout."""
        near = value >= value.max() * (1 - _ENTERED * self.slack) * (1 - 1e-9)
        largest = options.global_batch[near].max() if self.slack else options.global_batch[best(value)]
        return best(np.where(options.global_batch == largest, value, 0.0))

    def _compared(self, seen: Observation, found: Choice, here: Candidates, standing: int, *, forced: bool) -> Choice:
        """What was found, unless what stands is nearly as good."""
        stands = here.layout(standing)
        step_s = float(_times(seen.profile, seen.replicas, seen.nodes, here).step_s[standing])
        phi = math.inf if found.noise_scale is None else found.noise_scale
        current = efficiency(stands.global_batch, base_batch=self.base, noise_scale=phi) * stands.global_batch / step_s
        needed = 0.0 if forced else self._needed(seen)
        found = found._replace(current_step_s=step_s, current_goodput=current, needed=needed)
        assert found.goodput is not None
        better = found.goodput > current * (1 + needed)
        tried = found.goodput * (1 + found.hope) > current * (1 + needed)
        # Within the slack what stands is left for a batch so much larger that its fewer steps are worth the change.
        near = self.slack > 0 and found.goodput >= current * (1 - self.slack)
        fewer = near and found.layout.global_batch >= _FEWER * stands.global_batch
        if found.layout == stands or not (better or tried or fewer):
            return found._replace(layout=stands, promised=found.layout)
        return found if tried and not better else found._replace(hope=0.0)

    def _micro_bounds(self, seen: Observation) -> tuple[int, int]:
        """The smallest and largest micro-batch that may be used in this step."""
        low, high = self._local or (1, self.max or self.base)
        fixed = low == high
        if seen.profile and not fixed:
            measured = max(point.micro_batch for point in seen.profile)
            high = min(high, max(low, measured * (_GROWTH_AUTO if self.micro == "auto" else _GROWTH)))
        if seen.max_micro is not None:  # memory comes first; below it, the user's lower bound gives way
            high = min(high, max(seen.max_micro, 1))
        return min(low, high), high

    @property
    def _local(self) -> tuple[int, int] | None:
        """The bounds on micro-batches that were given as sizes."""
        return self.micro if isinstance(self.micro, tuple) else None

    def _limit(self, replicas: int, micro: tuple[int, int]) -> int:
        """The largest batch that the bounds allow: those given and, where memory holds less, those that are left."""
        bounds = (self._local, micro)
        return max(largest_batch(replicas, base=self.base, max_batch=self.max, micro=each) for each in bounds)

    def _most(self, seen: Observation, replicas: int, micro: tuple[int, int]) -> int:
        """The largest batch there may be: no step has more samples than an epoch."""
        return max(self.base, seen.within_epoch(self._limit(replicas, micro)))

    def _held(self, batch: int, replicas: int, micro: tuple[int, int]) -> int:
        """The batch that stands, or the nearest to it that fits this world."""
        limit = self._limit(replicas, micro)
        first, last = batches_on(replicas, base=self.base, max_batch=limit, micro=micro, shrink=self.shrink)
        wanted, bounds = min(max(batch, first), last), MicroBounds(*micro)
        below = batch_at_most(wanted, replicas, bounds)
        return below if below is not None and below >= first else batch_at_least(wanted, replicas, bounds)

    def _options(self, seen: Observation, micro: tuple[int, int], held: int, *, lowest: int | None) -> Candidates:
        return candidates(
            replicas=seen.replicas,
            base=self.base if lowest is None else lowest,
            max_batch=max(held, self._most(seen, seen.replicas, micro)),
            micro=micro,
            shrink=self.shrink and lowest is None,
            capacity=seen.capacity,
        )

    def _lowest(self, seen: Observation, held: int, *, sure: bool, forced: bool) -> int | None:
        """The smallest batch that may be chosen, where that is not the smallest there is.

        While the noise is not sure nothing is taken back but a trial, and that to no less than what had stood.
        """
        if self.monotone:
            return held
        if sure:
            return None
        if forced or measured_here(seen) >= SETTLED:
            return held
        return min(held, max(self.base, longest_run(seen, at_most=held)))

    def _dwelling(self, seen: Observation) -> bool:
        """Whether it is too early to look for another batch; one that was never measured is left late."""
        since, dwell = seen.samples - seen.batch_since, self._dwell(seen)
        return since < dwell or (not measured_here(seen) and since < 4 * max(dwell, _DWELL * seen.batch))

    def _needed(self, seen: Observation) -> float:
        """What a change must promise: a trial is left for little, a layout that has stood for long for half."""
        if measured_here(seen) < SETTLED:
            return self.hysteresis / 4
        return self.hysteresis / (2 if seen.samples - seen.batch_since >= _LONG * self._dwell(seen) else 1)

    def _dwell(self, seen: Observation) -> int:
        if self.dwell is not None:
            return self.dwell
        return (_SETTLED_DWELL if measured_here(seen) >= SETTLED else _DWELL) * seen.batch


def _micro(value: object) -> tuple[int, int] | Literal["auto"] | None:
    if value is None or (isinstance(value, str) and value == "auto"):
        return value  # pyright: ignore[reportReturnType]
    pair = (value, value) if as_whole(value) is not None else value
    sizes = [as_whole(size) for size in pair] if isinstance(pair, (tuple, list)) else []
    if len(sizes) == 2 and sizes[0] is not None and sizes[1] is not None and 1 <= sizes[0] <= sizes[1]:
        return sizes[0], sizes[1]
    raise ConfigError(
        f"micro is {value!r}; expected bounds (low, high) in samples with 1 <= low <= high, one size, 'auto' or None. "
        "Give for example micro=(16, 256)."
    )


def _noise_scale(seen: Observation) -> tuple[float | None, bool]:
    """By which to choose, and whether it is sure; else it is what it is at least, None where nothing is known."""
    if seen.noise is None:
        return None, False
    trusted = seen.noise.trusted
    return (trusted, True) if trusted is not None else (seen.noise.at_least or None, False)


def _find(here: Candidates, micro_batch: int | None) -> int | None:
    found = np.flatnonzero(here.micro_batch == (micro_batch or 0))
    return int(found[0]) if len(found) else None


# Both are functions of what was measured, which changes seldom: a step pays for a look into the cache.
@lru_cache(maxsize=16)
def _fit(profile: tuple[StepSummary, ...]) -> Fit:
    return fit(profile)


@lru_cache(maxsize=64)
def _times(profile: tuple[StepSummary, ...], replicas: int, nodes: int, options: Candidates) -> Prediction:
    return _fit(profile).predict(
        replicas=replicas, nodes=nodes, micro_batch=options.micro_batch, accumulation=options.accumulation
    )
