"""How long one optimizer step takes by its layout: computing, exchange, and how far the two overlap."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from swell.errors import ConfigError

AXES = ("replicas", "nodes", "micro_batch", "accumulation")  # the arguments of a step time
TIMES = ("alpha_c", "beta_c", "alpha_r", "beta_r", "alpha_n", "beta_n", "alpha_s")
GAMMA = (1.0, 10.0)
Numbers = np.ndarray | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    r"""The constants of the step-time law, in seconds; symbols as in Pollux and AdaptDL.

    With micro-batch :math:`b`, accumulation :math:`a` and :math:`K` replicas:

    .. math:: T_c = \alpha_c + \beta_c b, \qquad T_n = \alpha + \beta \max(K - 2, 0) \text{ if } K > 1 \text{, else } 0
    .. math:: T = (a - 1)\,T_c + (T_c^\gamma + T_n^\gamma)^{1/\gamma} + \alpha_s

    where :math:`\alpha, \beta` are those of the slowest link in use: r within one node, n between nodes. The term
    :math:`\alpha_s` is ours: without it, accumulation looks more expensive than it is.
    Reference: Qiao et al., Pollux, OSDI 2021, section 3.2, https://arxiv.org/abs/2008.12260
    """

    alpha_c: float  # computing: once per micro-batch
    beta_c: float  # computing: per sample of the micro-batch
    alpha_r: float = 0.0  # gradient exchange between two replicas of one node
    beta_r: float = 0.0  # and for each further replica
    alpha_n: float = 0.0  # gradient exchange between replicas on two nodes
    beta_n: float = 0.0  # and for each further replica
    gamma: float = 1.0  # overlap of computing and exchange: 1 for none (their sum), 10 for nearly all (the larger)
    alpha_s: float = 0.0  # once per optimizer step, whatever the batch: the update itself

    def __post_init__(self) -> None:
        wrong = [name for name in TIMES if not 0 <= getattr(self, name) < math.inf]
        if wrong or self.alpha_c + self.beta_c <= 0:
            raise ConfigError(
                f"{', '.join(wrong) or 'alpha_c + beta_c'} of {self} cannot be; expected finite seconds, 0 or more, "
                "and some time for computing. Get the constants from throughput.fit(...)."
            )
        if not GAMMA[0] <= self.gamma <= GAMMA[1]:
            raise ConfigError(
                f"gamma is {self.gamma}; expected 1 (no overlap) to 10 (nearly full). Give for example 2."
            )


def predict(
    params: Params, *, replicas: Numbers, nodes: Numbers, micro_batch: Numbers, accumulation: Numbers
) -> np.ndarray:
    """Seconds of one optimizer step by the law of ``Params``; the arguments are broadcast.

    >>> law = Params(alpha_c=0.01, beta_c=0.001, alpha_r=0.02)
    >>> predict(law, replicas=np.array([1, 2]), nodes=1, micro_batch=10, accumulation=3)
    array([0.06, 0.08])
    """
    shape, steps = table(replicas, nodes, micro_batch, accumulation)
    return step_seconds(to_theta(params), steps)[0].reshape(shape)


def table(*axes: Numbers) -> tuple[tuple[int, ...], np.ndarray]:
    """The broadcast shape, and one row (replicas, nodes, micro-batch, accumulation) for each element."""
    arrays = np.broadcast_arrays(*(np.asarray(axis, float) for axis in axes))
    return arrays[0].shape, np.stack([array.ravel() for array in arrays], axis=1)


def links(steps: np.ndarray) -> np.ndarray:
    """The link that the exchange of each row uses: 0 none, 1 within a node, 2 between nodes."""
    return np.where(steps[:, 0] <= 1, 0, np.where(steps[:, 1] <= 1, 1, 2))


def to_theta(params: Params) -> np.ndarray:
    """The vector that is fitted: logarithms of the seven times, so that none can be negative, then gamma."""
    return np.array([*(math.log(max(getattr(params, name), 1e-18)) for name in TIMES), params.gamma])


def to_params(theta: np.ndarray) -> Params:
    """The constants of a vector of ``to_theta``."""
    times = dict(zip(TIMES, np.exp(theta[:7]).tolist(), strict=True))
    return Params(**times, gamma=float(np.clip(theta[7], *GAMMA)))


def micro_batch_seconds(theta: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of computing one micro-batch, and the slopes of their logarithm by theta."""
    fixed, growing = np.exp(theta[0]), np.exp(theta[1]) * steps[:, 2]
    time = fixed + growing
    slopes = np.zeros((len(steps), 8))
    slopes[:, 0], slopes[:, 1] = fixed / time, growing / time
    return time, slopes


def step_seconds(theta: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of a step, and the slopes of their logarithm by theta."""
    gamma, link, once = theta[7], links(steps), np.exp(theta[6])
    computing, computing_slopes = micro_batch_seconds(theta, steps)
    if not link.any():  # nothing is exchanged
        micro_batches = (steps[:, 3] - 1) * computing + computing  # in this order, for the same digits as below
        time = micro_batches + once
        slopes = computing_slopes * (micro_batches / time)[:, None]
        slopes[:, 6] = once / time
        return time, slopes
    first = np.where(link == 2, np.exp(theta[4]), np.exp(theta[2]))
    further = np.where(link == 2, np.exp(theta[5]), np.exp(theta[3])) * np.maximum(steps[:, 0] - 2, 0)
    network = np.where(link > 0, first + further, 0.0)
    # (computing^gamma + network^gamma)^(1/gamma), from the larger of the two so that nothing overflows
    larger = np.maximum(computing, network)
    ratio = np.minimum(computing, network) / larger
    power = ratio**gamma
    joint = larger * (1 + power) ** (1 / gamma)
    by_computing = (computing / joint) ** (gamma - 1)
    by_network = np.where(network > 0, (network / joint) ** (gamma - 1), 0.0)
    by_gamma = joint * (power * np.log(np.maximum(ratio, 1e-300)) / (1 + power) - np.log1p(power) / gamma) / gamma
    time = (steps[:, 3] - 1) * computing + joint + once
    slopes = computing_slopes * ((steps[:, 3] - 1 + by_computing) * computing)[:, None]
    for column, kind in ((2, 1), (4, 2)):
        slopes[:, column] = np.where(link == kind, by_network * first, 0.0)
        slopes[:, column + 1] = np.where(link == kind, by_network * further, 0.0)
    slopes[:, 6] = once
    slopes[:, 7] = np.where(link > 0, by_gamma, 0.0)
    return time, slopes / time[:, None]
