"""Fingerprints of samples and of data sets, by which passes and replicas notice that they read something else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

_BYTES = 4096  # of a large tensor are looked at, spread over all of it
_ITEMS = 1024  # of a long list
_DEPTH = 4  # how far containers are followed


def sample_fingerprint(sample: Any) -> str:
    """A short text that is the same for equal samples, in any process, and almost surely another for others.

    Looks into dicts, lists, tuples, tensors, arrays, numbers and text. Of other kinds the bytes count where they have
    ``tobytes`` (images), else only the type. Of a large tensor a part is looked at, spread over all of it.

    >>> sample_fingerprint({"x": torch.arange(3)}) == sample_fingerprint({"x": torch.tensor([0, 1, 2])})
    True
    >>> sample_fingerprint((1, "a")) == sample_fingerprint((1, "b"))
    False
    """
    digest = blake2b(digest_size=8)
    for part in _parts(sample, depth=0):
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.hexdigest()


def data_fingerprint(dataset: Any) -> str | None:
    """A fingerprint of what a data set holds in memory; None where it holds nothing that can be compared.

    No sample is read: reading may be slow, random, or open files that data-loading workers must open themselves. Looked
    at are tensors, arrays and lists of numbers: of a ``TensorDataset``, of those inside ``Subset`` and
    ``ConcatDataset``, and the attributes of any other data set. One of Hugging Face ``datasets`` has a fingerprint of
    its own.

    >>> data_fingerprint(TensorDataset(torch.zeros(3))) == data_fingerprint(TensorDataset(torch.ones(3)))
    False
    >>> data_fingerprint(range(3)) is None
    True
    """
    parts = list(_held(dataset, depth=0))
    return sample_fingerprint(parts) if parts else None


def _held(dataset: Any, *, depth: int) -> Iterable[Any]:
    """The tensors and arrays that a data set holds, and lists of numbers, each after its name."""
    if depth > _DEPTH:
        return
    if isinstance(dataset, (torch.Tensor, np.ndarray)) or _is_numbers(dataset):
        yield dataset
    elif isinstance(dataset, TensorDataset):
        yield from dataset.tensors
    elif isinstance(dataset, Subset):
        indices: Any = dataset.indices
        if isinstance(indices, (list, tuple, torch.Tensor, np.ndarray)):
            yield indices
        elif isinstance(indices, range):
            yield repr(indices)
        yield from _held(dataset.dataset, depth=depth + 1)
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            yield from _held(part, depth=depth + 1)
    elif isinstance(own := getattr(dataset, "_fingerprint", None), str):
        yield own
    elif isinstance(dataset, (list, tuple)):
        yield from (item for item in dataset[:_ITEMS] if isinstance(item, (torch.Tensor, np.ndarray)))
    elif isinstance(dataset, Dataset):
        for name, value in sorted(vars(dataset).items()):
            if isinstance(value, (torch.Tensor, np.ndarray)) or _is_numbers(value):
                yield from (name, value)
            elif isinstance(value, Dataset):
                yield from _held(value, depth=depth + 1)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(type(x) in (int, float) for x in value[:_ITEMS])


def _parts(value: Any, *, depth: int) -> Iterable[bytes]:
    """The value as a sequence of bytes; equal values give the same, however their memory is shared or laid out."""
    if isinstance(value, torch.Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)}".encode()
        if value.layout is torch.strided and not value.is_meta:
            yield _tensor_bytes(value.detach())
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        yield from _parts(value.tolist(), depth=depth + 1)
    elif isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value).reshape(-1)
        yield f"array {array.dtype} {np.shape(value)}".encode()
        yield array[:: 1 + array.nbytes // _BYTES].tobytes()
    elif isinstance(value, bytes):
        yield b"bytes %d" % len(value)
        yield value[:: 1 + len(value) // _BYTES]
    elif value is None or isinstance(value, (bool, int, float, complex, str)):
        yield f"{type(value).__name__} {value}".encode()
    elif isinstance(value, Mapping) and depth < _DEPTH:
        yield b"mapping %d" % len(value)
        for key, item in value.items():
            yield str(key).encode()
            yield from _parts(item, depth=depth + 1)
    elif isinstance(value, (list, tuple)) and depth < _DEPTH:
        yield b"sequence %d" % len(value)
        for item in value[:: 1 + len(value) // _ITEMS]:
            yield from _parts(item, depth=depth + 1)
    else:
        yield type(value).__qualname__.encode()
        whole: Any = getattr(value, "tobytes", None)
        if callable(whole):
            with suppress(Exception):  # an image that cannot be decoded is the user's to find
                yield from _parts(whole(), depth=depth)


def _tensor_bytes(tensor: torch.Tensor) -> bytes:
    step = 1 + tensor.numel() * tensor.element_size() // _BYTES
    if tensor.device.type == "cpu":
        with suppress(TypeError, RuntimeError):  # a type that numpy does not have, or a tensor that is not plain memory
            return tensor.numpy().reshape(-1)[::step].tobytes()
    flat = tensor.reshape(-1)[::step]
    flat = torch.view_as_real(flat) if flat.is_complex() else flat
    if not flat.numel():
        return b""
    dense = torch.empty(flat.shape, dtype=flat.dtype).copy_(flat)  # contiguous() keeps the stride of a single element
    return dense.view(torch.uint8).numpy().tobytes()
