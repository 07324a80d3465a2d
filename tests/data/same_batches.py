"""Two batches are the same: their containers, their types and their values."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def assert_equal(got: Tensor, expected: Tensor) -> None:
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)


def assert_same(got: Any, expected: Any, tensors: Callable[[Tensor, Tensor], None] = assert_equal) -> None:
    """``tensors`` compares two of them."""
    assert type(got) is type(expected)
    if isinstance(expected, Tensor):
        tensors(got, expected)
    elif isinstance(expected, (dict, UserDict)):
        assert list(got) == list(expected)
        for key in expected:
            assert_same(got[key], expected[key], tensors)
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            assert_same(a, b, tensors)
    else:
        assert got == expected
