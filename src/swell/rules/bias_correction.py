"""Adam's bias correction when its betas change from step to step."""

from __future__ import annotations

import math

from swell.errors import ConfigError


def effective_step(power_sum: float, power: float) -> float:
    r"""The step number at which a fixed beta has the correct bias correction.

    A running mean :math:`m_t = \beta_t m_{t-1} + (1 - \beta_t) g_t` from zero must be divided by
    :math:`1 - \prod \beta_t`. torch divides by :math:`1 - \beta'^{\,\mathrm{step}}` with the current beta alone. With
    rules that raise beta to a power :math:`\kappa_t` in each step, the product is :math:`\beta^{\sum \kappa_t}`, so

    .. math:: \mathrm{step} = \sum_t \kappa_t / \kappa_{\text{now}}
              \quad\Rightarrow\quad \beta'^{\,\mathrm{step}} = \prod_t \beta_t

    for both betas at once. Adam increments its step before it uses it: set it to ``effective_step(...) - 1``. Without
    this, beta2 from 0.95 to 0.9975 at step 100 would divide by 0.22 instead of 1.

    Args:
        power_sum: sum of the powers of every step so far, this one included; for a run that started without powers, the
            number of those steps plus the powers since.
        power: the power of this step.

    Moments themselves are never reset or rescaled by a change of batch.

    >>> effective_step(1.0, 1.0)
    1.0
    >>> effective_step(100 * 1.0 + 4.0, 4.0)
    26.0
    """
    if not (power > 0 and power * (1 - 1e-9) <= power_sum < math.inf):
        raise ConfigError(
            f"power_sum is {power_sum} and power is {power}; expected a power above 0 that is part of the sum. Add "
            "this step's power to the sum first."
        )
    return power_sum / power
