"""Nested states of every kind that a checkpoint holds, and whether two of them are the same."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.bool,
]
ARRAY_DTYPES = ["<f8", ">f4", "<i8", "|u1", "?", "<c16", "<U3", "<M8[ns]", [("a", "<i4"), ("b", "<f8", (2,))]]

text = st.text(st.characters(), max_size=8)  # lone surrogates included
keys = text | st.integers(-(2**70), 2**70) | st.booleans() | st.none()
keys = keys | st.tuples(text, st.integers())
shapes = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any bits, of any dtype: not-a-numbers too."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(shapes)
    length = math.prod(shape) * dtype.itemsize
    data = draw(st.binary(min_size=length, max_size=length))
    if dtype is torch.bool:
        data = bytes(byte & 1 for byte in data)
    tensor = torch.frombuffer(bytearray(data), dtype=dtype).view(shape) if length else torch.empty(shape, dtype=dtype)
    return draw(st.sampled_from([tensor, tensor.T.contiguous().T] if len(shape) == 2 else [tensor]))


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(ARRAY_DTYPES)))
    shape = draw(shapes)
    length = math.prod(shape) * dtype.itemsize
    if dtype.kind == "U":
        return np.full(shape, draw(st.text("aé", max_size=3)), dtype)
    data = draw(st.binary(min_size=length, max_size=length))
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    return np.ndarray(shape, dtype, buffer=bytearray(data)) if length else np.empty(shape, dtype)


scalars = st.sampled_from(
    [
        np.float32(0.1),
        np.float64("nan"),
        np.int16(-3),
        np.bool_(True),
        np.str_("é"),
        np.str_(""),
        np.datetime64("2026-01-02"),
    ]
)
atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(-(3**2000))
    | st.floats()
    | st.complex_numbers()
    | text
    | st.binary(max_size=20)
    | st.sets(keys, max_size=3)
    | st.sampled_from([torch.Size([2, 3]), torch.float8_e5m2, torch.device("cpu"), torch.device("cuda", 1)])
    | st.dictionaries(text, st.integers(0, 9), max_size=3).map(Counter)
    | scalars
    | tensors()
    | arrays()
)
states = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(text, inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type and in every bit, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(bits(one), bits(other))
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    if isinstance(one, np.generic):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return one.hex() == other.hex()
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    if isinstance(one, dict):
        kept = same(getattr(one, "_metadata", None), getattr(other, "_metadata", None))
        return kept and same(list(one), list(other)) and same(list(one.values()), list(other.values()))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().contiguous().view(-1)
    return (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).view(torch.uint8)
