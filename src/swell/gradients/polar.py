"""The polar factor of matrices: what an orthogonalised step, such as Muon's, moves by."""

from __future__ import annotations

import torch
from torch import Tensor

# x -> a x + b x^3 + c x^5 on every singular value. The first steps are Muon's, which raise small values fast and leave
# all of them near 1; the last ones take those to 1 (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon).
_RAISE, _SETTLE = (3.4445, -4.7750, 2.0315), (1.875, -1.25, 0.375)
_STEPS = (_RAISE,) * 6 + (_SETTLE,) * 3


def polar_factors(matrices: Tensor) -> Tensor:
    """``U V^T`` of each matrix ``U S V^T`` in a stack of them, wide or tall; zeros stay zeros.

    By Newton-Schulz steps, without a singular value decomposition and without waiting for the device. Singular values
    above a thousandth of the Frobenius norm come out within 1 % of 1, smaller ones below it, so that what is only
    rounding does not count as a direction. At least float32 is used.

    >>> polar_factors(torch.tensor([[3.0, 0.0], [0.0, -0.5]])).round(decimals=2)
    tensor([[ 1.,  0.],
            [ 0., -1.]])
    """
    wide = matrices.to(torch.promote_types(matrices.dtype, torch.float32))
    tall = wide.shape[-2] > wide.shape[-1]
    x = wide.mT if tall else wide
    tiny = torch.finfo(x.dtype).tiny
    x = x / x.abs().amax((-2, -1), keepdim=True).clamp_min(tiny)  # first, because squares could overflow
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp_min(tiny)
    for a, b, c in _STEPS:
        square = x @ x.mT
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.mT if tall else x
