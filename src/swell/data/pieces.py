"""Batches cut and joined along their samples, for batches as ``torch.utils.data.default_collate`` makes them.

Such a batch is a tensor whose first dimension counts samples, a list or tuple of strings, or any nesting of these in
mappings, named tuples, lists and tuples. Of samples ``s``, with ``B = default_collate``::

    cut(B(s), a, b, size=len(s)) == B(s[a:b])        join([B(s[:a]), B(s[a:])]) == B(s)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch


class PieceError(TypeError):
    """A batch is not built as ``default_collate`` builds them, so its samples cannot be separated."""


def cut(batch: Any, start: int, stop: int, *, size: int) -> Any:
    """Samples ``start`` to ``stop`` of a batch of ``size``; tensors are views, nothing is copied.

    Raises :class:`PieceError` if a part of the batch does not hold ``size`` samples.

    >>> cut({"x": torch.arange(4), "name": ["a", "b", "c", "d"]}, 1, 3, size=4)
    {'x': tensor([1, 2]), 'name': ['b', 'c']}
    """

    def leaf(leaves: Sequence[Any]) -> Any:
        (whole,) = leaves
        if (whole.shape[:1] if isinstance(whole, torch.Tensor) else (len(whole),)) != (size,):
            raise PieceError(f"a part of the batch does not hold {size} samples along its first dimension")
        return whole[start:stop]

    return _walk([batch], leaf)


def join(batches: Sequence[Any]) -> Any:
    """One batch with the samples of all, in order; pinned if all are pinned.

    Raises :class:`PieceError` if the batches differ in structure, type or shape.

    >>> join([[torch.tensor([0, 1]), ("a", "b")], [torch.tensor([2]), ("c",)]])
    [tensor([0, 1, 2]), ('a', 'b', 'c')]
    """
    return batches[0] if len(batches) == 1 else _walk(batches, _join_leaves)


def _join_leaves(leaves: Sequence[Any]) -> Any:
    first = leaves[0]
    if not isinstance(first, torch.Tensor):
        if not all(_is_text(leaf) for leaf in leaves):
            raise PieceError("strings in one batch, something else in another")
        texts = [text for leaf in leaves for text in leaf]
        return texts if isinstance(first, list) else type(first)(texts)
    if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise PieceError("a tensor in one batch, something else in another")
    if len({(leaf.dtype, leaf.device, leaf.shape[1:]) for leaf in leaves}) > 1:
        raise PieceError("tensors differ in type, device or shape")
    if not all(leaf.is_pinned() for leaf in leaves):
        return torch.cat(list(leaves))
    length = sum(leaf.shape[0] for leaf in leaves)
    return torch.cat(list(leaves), out=torch.empty((length, *first.shape[1:]), dtype=first.dtype, pin_memory=True))


def _walk(batches: Sequence[Any], leaf: Callable[[Sequence[Any]], Any]) -> Any:
    """Apply ``leaf`` to corresponding leaves of all batches; the results take the first batch's structure."""
    first = batches[0]
    if isinstance(first, torch.Tensor):
        if first.dim() == 0 or first.layout is not torch.strided or first.is_nested:
            raise PieceError("a tensor without a first dimension of samples")
        return leaf(batches)
    if _is_text(first):
        return leaf(batches)
    if isinstance(first, Mapping):
        if not all(isinstance(batch, Mapping) and batch.keys() == first.keys() for batch in batches):
            raise PieceError("mappings with other keys")
        return _mapping_like(first, {key: _walk([batch[key] for batch in batches], leaf) for key in first})
    if isinstance(first, Sequence) and not isinstance(first, (str, bytes)):
        if not all(type(batch) is type(first) and len(batch) == len(first) for batch in batches):
            raise PieceError("sequences of another type or length")
        return _sequence_like(first, [_walk(items, leaf) for items in zip(*batches, strict=True)])
    raise PieceError(f"a {type(first).__name__}, which default_collate does not make")


def _is_text(batch: Any) -> bool:
    return isinstance(batch, (list, tuple)) and len(batch) > 0 and isinstance(batch[0], (str, bytes))


# These two rebuild containers as default_collate does, so that extra attributes are kept.


def _mapping_like(first: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    try:
        if isinstance(first, MutableMapping):
            clone = copy.copy(first)
            clone.update(items)
            return clone
        return type(first)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def _sequence_like(first: Sequence[Any], items: list[Any]) -> Any:
    if isinstance(first, tuple):
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    try:
        if isinstance(first, MutableSequence):
            clone = copy.copy(first)
            for i, item in enumerate(items):
                clone[i] = item
            return clone
        return type(first)(items)  # type: ignore[call-arg]
    except TypeError:
        return items
