"""The gradient of one step on every replica, summed from what each of them has added up."""

from __future__ import annotations

import torch
from torch import Tensor

from swell.core.protocols import Collective
from swell.gradients.gradient_sum import ABSENT, DENSE, SPARSE, GradientSum


def sum_over_replicas(gradients: GradientSum, collective: Collective, figures: Tensor) -> Tensor:
    """Leave the gradients, summed over replicas, in ``.grad`` on each; returns the sum of ``figures``.

    Every replica calls it. A first message says which parameters have a gradient, so a replica without one sends
    zeros, and a parameter that no replica used keeps none. ``figures``, a vector, travels in that message with its own
    dtype and on its own device.
    """
    codes = gradients.codes()
    if collective.size > 1:
        flags = [float(code == kind) for kind in (DENSE, SPARSE) for code in codes]
        message = torch.cat([figures.new_tensor(flags), figures])
        collective.sum_tensors([message])
        flags, figures = message[: len(flags)].tolist(), message[len(flags) :]
        dense, sparse = flags[: len(codes)], flags[len(codes) :]
        codes = "".join(DENSE if d else SPARSE if s else ABSENT for d, s in zip(dense, sparse, strict=True))
        collective.sum_tensors(gradients.tensors_to_sum(codes))
    gradients.release(codes)
    return figures
