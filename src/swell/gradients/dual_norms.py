"""Two gradients compared in the dual norm of their optimizer, by parameter group, without waiting for the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors  # one call where flattening each would take one a tensor

from swell.gradients.norms import WIDE
from swell.gradients.polar import polar_factors

DualNorm = Literal["absolute", "nuclear"]
TOGETHER = 2**22  # elements that are copied and compared together at most, unless one gradient has more

_Two = tuple[Tensor, Tensor]  # gradients of one parameter from two small batches


class DualNorms:
    """Compares gradients of a list of parameters, group by group.

    ``"nuclear"`` takes the nuclear norm of matrices, and of tensors with more dimensions as matrices of ``shape[0]``
    rows; all else, and parameter groups that say ``use_muon=False``, has the sum of absolute values.
    """

    def __init__(self, groups: Sequence[Mapping[str, Any]], norm: DualNorm) -> None:
        self._groups: list[list[tuple[Tensor, bool]]] = []  # each parameter, and whether it is taken as a matrix
        for group in groups:
            nuclear = norm == "nuclear" and group.get("use_muon", True)
            self._groups.append([(parameter, bool(nuclear) and parameter.ndim > 1) for parameter in group["params"]])

    @torch.no_grad()
    def compare(
        self, first: Sequence[Tensor | None], second: Sequence[Tensor | None], *, weights: tuple[float, float]
    ) -> Tensor:
        """Reach and spread (see :mod:`swell.core.dual_noise`) of each group: a 2 by groups tensor in float64.

        The gradients are those of two small batches, multiplied by ``weights``; a missing one counts as zero.
        """
        device = next((g.device for g in (*first, *second) if g is not None), torch.device("cpu"))
        totals: list[Tensor] = []
        start = 0
        for members in self._groups:
            part = slice(start, start + len(members))
            total = torch.zeros(2, dtype=torch.float64, device=device)
            for figures in _figures(members, first[part], second[part], weights):
                total = total + figures.to(device, torch.float64)
            totals.append(total)
            start = part.stop
        return torch.stack(totals, 1)


def _figures(
    members: Sequence[tuple[Tensor, bool]],
    first: Sequence[Tensor | None],
    second: Sequence[Tensor | None],
    weights: tuple[float, float],
) -> Iterator[Tensor]:
    """The reach and spread of one part of a group after another."""
    alike: dict[tuple[Any, ...], list[_Two]] = {}
    for (parameter, matrix), a, b in zip(members, first, second, strict=True):
        if (a is None and b is None) or parameter.numel() == 0:
            continue
        two = _dense(a, parameter), _dense(b, parameter)
        shape: tuple[int, ...] = ()
        if matrix:
            two = two[0].reshape(len(parameter), -1), two[1].reshape(len(parameter), -1)
            if two[0].shape[0] > two[0].shape[1]:  # the same figures, and more matrices of one shape
                two = two[0].mT, two[1].mT
            shape = tuple(two[0].shape)
        alike.setdefault((shape, two[0].dtype, two[0].device), []).append(two)
    for (shape, *_), gradients in alike.items():
        for some in _parts(gradients):
            a, b = ([two[place] for two in some] for place in (0, 1))
            if shape:
                yield _by_matrices(torch.stack(a), torch.stack(b), weights)
            else:
                yield _by_elements(_flatten_dense_tensors(a), _flatten_dense_tensors(b), weights)


def _dense(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    if gradient is None:
        return torch.zeros_like(parameter, dtype=WIDE.get(parameter.dtype, parameter.dtype))
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return dense.to(WIDE.get(dense.dtype, dense.dtype))


def _parts(gradients: list[_Two]) -> Iterator[list[_Two]]:
    """The gradients in lists of at most TOGETHER elements."""
    some: list[_Two] = []
    size = 0
    for two in gradients:
        if some and size + two[0].numel() > TOGETHER:
            yield some
            some, size = [], 0
        some.append(two)
        size += two[0].numel()
    if some:
        yield some


def _by_elements(a: Tensor, b: Tensor, weights: tuple[float, float]) -> Tensor:
    reach = (a.sign() * b).sum() / weights[1] + (b.sign() * a).sum() / weights[0]
    return torch.stack([reach / 2, (a / weights[0] - b / weights[1]).abs().sum()])


def _by_matrices(a: Tensor, b: Tensor, weights: tuple[float, float]) -> Tensor:
    apart = a / weights[0] - b / weights[1]
    of_a, of_b, of_apart = polar_factors(torch.stack([a, b, apart]))
    reach = (of_a * b).sum() / weights[1] + (of_b * a).sum() / weights[0]
    return torch.stack([reach / 2, (of_apart * apart).sum()])
