"""Tensors as memory: whether two are the same, the strides of a copy without gaps, the bytes, the name of a dtype."""

from __future__ import annotations

from collections.abc import Hashable

import torch


def identity(tensor: torch.Tensor) -> Hashable:
    """A key that is equal for two views of the same memory.

    Keep the tensor as long as the key: once it is freed, another tensor can get its address.
    """
    return tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride()


def dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of a copy without gaps; dimensions keep their order, so channels-last stays channels-last."""
    return tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()


def flat_bytes(dense: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor without gaps, as one-dimensional uint8; nothing is copied."""
    flat = dense.as_strided((dense.numel(),), (1,))
    return (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).view(torch.uint8)


def dtype_name(dtype: torch.dtype) -> str:
    """The name that ``named_dtype`` reads.

    >>> dtype_name(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")


def named_dtype(name: str) -> torch.dtype:
    """The dtype of this name; ``ValueError`` if torch has none."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {name!r}")
    return dtype
