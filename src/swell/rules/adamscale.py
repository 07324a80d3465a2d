"""AdamScale: the learning rate of adaptive optimizers by measured gradient noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from swell.core.moments import gain
from swell.core.types import Factors, ScaleState
from swell.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamScale:
    r"""lr · √r, where r is AdaScale's gain in the metric the optimizer works in.

    The square-root rule while noise dominates, no change once the signal does: between 1 and √κ. A step is worth r
    base steps (not √r), because one step of Adam at κ times the batch replaces r of them.

    ``metric`` says which moments r uses. ``"preconditioned"``: of gradients divided by √v + ε, like Adam's steps.
    ``"plain"``: of the gradients themselves, for adaptive optimizers without an elementwise second moment (Muon,
    Adamax, Adafactor). ``"dual"``: in the dual norm of steps by signs (Signum, Lion) or by orthogonalised matrices
    (Muon), see :mod:`swell.core.dual_noise`; the first-order progress of such a step grows by √r at the same learning
    rate. Until the chosen one is measured, the rule stays at the cautious end of its range: r = ``min(1, κ)``. If both
    are measured, the preconditioned r is at most the plain one, because the rows of rare words in an embedding have
    tiny second moments, which can make nearly everything look like noise in that metric. The dual r stands alone.

    The decay of a model average becomes ρ^κ, which keeps its half-life in samples.

    References: Qiao et al. 2021 (Pollux), https://arxiv.org/abs/2008.12260, as AdaptDL's ``AdamScale``; for the root,
    Malladi et al. 2022, section 5, https://arxiv.org/abs/2205.10287; for dual norms, https://arxiv.org/abs/2602.03001

    >>> from swell.core.types import Moments
    >>> state = ScaleState(scale=4.0, base_batch=32, preconditioned=Moments(signal=0.0, noise=32.0))
    >>> AdamScale().factors(state).lr, AdamScale().gain(state)
    (2.0, 4.0)
    """

    metric: Literal["preconditioned", "plain", "dual"] = "preconditioned"

    def __post_init__(self) -> None:
        if self.metric not in ("preconditioned", "plain", "dual"):
            raise ConfigError(
                f"metric is {self.metric!r}; expected 'preconditioned', 'plain' or 'dual'. Give 'preconditioned' for "
                "optimizers with a second moment such as Adam, 'dual' for Muon, Lion and Signum, 'plain' for any."
            )

    def factors(self, state: ScaleState) -> Factors:
        return Factors(lr=math.sqrt(self.gain(state)), ema_power=state.scale)

    def gain(self, state: ScaleState) -> float:
        if self.metric == "dual":
            return gain(state.scale, state.dual, base_batch=state.base_batch)
        plain = gain(state.scale, state.moments, base_batch=state.base_batch)
        if self.metric == "plain":
            return plain
        own = gain(state.scale, state.preconditioned, base_batch=state.base_batch)
        return own if state.moments is None else min(own, plain)
