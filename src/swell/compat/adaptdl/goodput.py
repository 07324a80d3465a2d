"""AdaptDL's goodput model, on swell's step-time law, efficiency and candidates; for numbers and arrays.

AdaptDL's ``atomic_bsz`` is swell's micro-batch, its ``accum_steps`` is swell's accumulation less one, and its ``var``
is the variance of a mean gradient over the initial batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from swell.core import goodput as core
from swell.core.counts import whole_number
from swell.core.equal_shares import equal_shares
from swell.core.step_time import Params, predict
from swell.core.throughput import fit
from swell.core.types import Moments, StepSummary
from swell.errors import ConfigError, PlanError

Numbers = Any  # a number, or an array of them


class PerfParams(NamedTuple):
    """The constants of the step-time law, in seconds: c for computing, n between nodes, r within a node."""

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float


class GradParams(NamedTuple):
    """The squared norm of the true gradient, and the variance of a mean gradient over the initial batch."""

    sqr: float
    var: float


class GoodputFunction:
    """The progress per second of any layout, and the best layout.

    >>> fun = GoodputFunction(PerfParams(0.1, 0.01, 0.5, 0.1, 0.2, 0.05, 1.2), GradParams(0.001, 0.01), 128)
    >>> goodput, atomic_bsz, accum_steps = fun.optimize(1, 3, max_batch_size=1000, atomic_bsz_range=(32, 256))
    >>> bool(3 * atomic_bsz * (accum_steps + 1) <= 1000)
    True
    """

    def __init__(
        self, perf_params: PerfParams | tuple[float, ...], grad_params: GradParams | tuple[float, ...],
        init_batch_size: int,
    ) -> None:  # fmt: skip
        self.perf_params, self.grad_params = PerfParams(*perf_params), GradParams(*grad_params)
        self.init_batch_size = whole_number(init_batch_size, name="init_batch_size")
        self._law = Params(**{name: float(value) for name, value in self.perf_params._asdict().items()})
        sqr, var = (float(value) for value in self.grad_params)
        self._noise_scale = Moments(signal=sqr, noise=var * self.init_batch_size).noise_scale

    def __call__(self, num_nodes: Numbers, num_replicas: Numbers, atomic_bsz: Numbers, accum_steps: Numbers) -> Any:
        """As :meth:`evaluate`."""
        return self.evaluate(num_nodes, num_replicas, atomic_bsz, accum_steps)

    def evaluate(self, num_nodes: Numbers, num_replicas: Numbers, atomic_bsz: Numbers, accum_steps: Numbers) -> Any:
        """Samples per second times efficiency; ``ConfigError`` for batches below the initial one."""
        batch = _batch(num_replicas, atomic_bsz, accum_steps)
        if np.any(batch < self.init_batch_size):
            raise ConfigError(
                f"the global batch is {batch.min():g}; expected the initial {self.init_batch_size}, for which the "
                f"gradient was measured, or more. Raise num_replicas, atomic_bsz or accum_steps."
            )
        return self._goodput(batch, self._seconds(num_nodes, num_replicas, atomic_bsz, accum_steps))[()]

    def throughput(self, num_nodes: Numbers, num_replicas: Numbers, atomic_bsz: Numbers, accum_steps: Numbers) -> Any:
        """Samples per second."""
        seconds = self._seconds(num_nodes, num_replicas, atomic_bsz, accum_steps)
        return (_batch(num_replicas, atomic_bsz, accum_steps) / seconds)[()]

    def efficiency(self, batch_size: Numbers) -> Any:
        """The progress of a sample at ``batch_size``, relative to one at the initial batch."""
        batch = np.asarray(batch_size, float)
        return self._goodput(batch, batch)[()]  # at one sample per second, goodput is efficiency

    def optimize(
        self,
        num_nodes: Numbers,
        num_replicas: Numbers,
        max_batch_size: int | None = None,
        atomic_bsz_range: tuple[int | None, int | None] | None = None,
        accumulation: bool = False,
    ) -> tuple[Any, Any, Any]:
        """Goodput, atomic batch and accumulation steps of the best layout, for each number of nodes and replicas.

        Bounds are hard: no global batch is above ``max_batch_size``, and no atomic batch is outside its range. If only
        uneven shares fit, ``atomic_bsz`` is the largest of them. Without accumulation, one replica keeps the initial
        batch. Where nothing fits, an array has goodput 0, atomic batch 0 and no steps; for a single number
        ``PlanError`` says what to change.
        """
        nodes, replicas = np.broadcast_arrays(num_nodes, num_replicas)
        low, high = atomic_bsz_range or (None, None)
        max_batch = whole_number(
            self.init_batch_size if max_batch_size is None else max_batch_size, name="max_batch_size"
        )
        micro = (low or 1, high or max_batch)
        if nodes.ndim == 0:
            return self._best(int(nodes), int(replicas), max_batch, micro, accumulation)
        layouts = [
            self._best_or_zero(int(n), int(r), max_batch, micro, accumulation)
            for n, r in zip(nodes.ravel(), replicas.ravel(), strict=True)
        ]
        columns = np.array(layouts, dtype=[("goodput", float), ("atomic", int), ("steps", int)]).reshape(nodes.shape)
        return columns["goodput"], columns["atomic"], columns["steps"]

    def _best_or_zero(
        self, nodes: int, replicas: int, max_batch: int, micro: tuple[int, int], accumulation: bool
    ) -> tuple[float, int, int]:
        try:
            return self._best(nodes, replicas, max_batch, micro, accumulation)
        except PlanError:
            return 0.0, 0, 0

    def _best(
        self, nodes: int, replicas: int, max_batch: int, micro: tuple[int, int], accumulation: bool
    ) -> tuple[float, int, int]:
        base = self.init_batch_size
        if replicas == 1 and not accumulation:
            max_batch = min(base, max_batch)
        layouts = equal_shares(
            replicas=replicas, min_batch=base, max_batch=max_batch, micro=micro, accumulation=accumulation
        )
        if not len(layouts):
            layouts = self._uneven(replicas, max_batch, micro, accumulation)
        seconds = self._seconds(nodes, replicas, layouts.micro_batch, layouts.accumulation - 1)
        values = self._goodput(layouts.global_batch, seconds)
        best = core.best(values)
        return float(values[best]), int(layouts.micro_batch[best]), int(layouts.accumulation[best]) - 1

    def _uneven(self, replicas: int, max_batch: int, micro: tuple[int, int], accumulation: bool) -> core.Candidates:
        """Layouts with uneven shares; ``PlanError`` if there are none."""
        if not accumulation:
            max_batch = min(max_batch, replicas * micro[1])
        if max_batch < self.init_batch_size:
            raise PlanError(
                f"the largest global batch is {max_batch} on {replicas} replica(s); expected the initial "
                f"{self.init_batch_size} or more. Raise max_batch_size or the upper end of atomic_bsz_range, or allow "
                f"accumulation."
            )
        layouts = core.candidates(replicas=replicas, base=self.init_batch_size, max_batch=max_batch, micro=micro)
        usable = layouts.accumulation >= 1 if accumulation else layouts.accumulation == 1
        return core.Candidates(layouts.global_batch[usable], layouts.micro_batch[usable], layouts.accumulation[usable])

    def _goodput(self, batch: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        return core.goodput(batch, seconds, self.init_batch_size, self._noise_scale)

    def _seconds(self, nodes: Numbers, replicas: Numbers, atomic: Numbers, steps: Numbers) -> np.ndarray:
        return predict(
            self._law, replicas=replicas, nodes=nodes, micro_batch=atomic, accumulation=np.asarray(steps) + 1
        )


def fit_perf_params(
    nodes: Numbers, replicas: Numbers, atomic_bsz: Numbers, accum_step_time: Numbers, optim_step_time: Numbers
) -> PerfParams:
    """The constants that fit measured times in seconds: of computing alone, and of a step with exchange and update.

    It uses :func:`swell.core.throughput.fit`, and adds that law's constant for the update to the one for computing.
    """
    columns = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(x, float)) for x in (nodes, replicas, atomic_bsz, accum_step_time, optim_step_time))
    )
    points = [
        StepSummary(
            nodes=int(n),
            replicas=int(r),
            micro_batch=int(b),
            accumulation=1,
            count=32,
            step_s=float(max(whole, part)),
            sync_s=float(max(whole - part, 0.0)) if r > 1 else 0.0,
        )
        for n, r, b, part, whole in zip(*columns, strict=True)
    ]
    law = fit(points).params
    return PerfParams(
        alpha_c=law.alpha_c + law.alpha_s, beta_c=law.beta_c, alpha_n=law.alpha_n, beta_n=law.beta_n,
        alpha_r=law.alpha_r, beta_r=law.beta_r, gamma=law.gamma,
    )  # fmt: skip


def _batch(replicas: Numbers, atomic: Numbers, steps: Numbers) -> np.ndarray:
    return np.asarray(replicas, float) * np.asarray(atomic) * (np.asarray(steps) + 1)
