"""States of plain values, as a safe loader can read them: what is not plain is spelled out, what is unknown refused."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from swell.errors import CheckpointError

Leaf = Callable[[str, torch.Tensor], Any]

MARK = "__swell__"  # the key of a dict that spells out a value which torch's safe loader does not know
HELD = "dict, list, tuple, set, str, bytes, int, float, complex, bool, None, tensors, numpy arrays and numpy scalars"

# Exact types: a subclass (an enum, a named tuple, a class of the user's) would come back as something else.
_ATOMS = (type(None), bool, str, float, complex, torch.Size, torch.dtype, torch.device)
_LARGEST_INT_BITS = 2000  # the safe loader reads integers of at most 255 bytes


def encode(value: Any, *, leaf: Leaf, where: str = "state") -> Any:
    """The value with every container copied, every tensor passed through ``leaf`` and numpy spelled out.

    ``where`` names the value in errors. Whatever is not one of the kinds in ``HELD`` (and the few that torch's own
    states hold: OrderedDict, Counter, torch.Size, torch.dtype, torch.device) raises ``CheckpointError``.

    >>> encode({"lr": [0.1, (1, None)]}, leaf=plain_tensor)
    {'lr': [0.1, (1, None)]}
    >>> decode(encode(np.arange(3), leaf=plain_tensor))
    array([0, 1, 2])
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is int:
        return value if value.bit_length() <= _LARGEST_INT_BITS else {MARK: "int", "hex": hex(value)}
    if isinstance(value, torch.Tensor):
        return leaf(where, value)
    if kind is list:
        return [encode(item, leaf=leaf, where=f"{where}[{i}]") for i, item in enumerate(value)]
    if kind is tuple:
        return tuple([encode(item, leaf=leaf, where=f"{where}[{i}]") for i, item in enumerate(value)])
    if kind in (dict, OrderedDict, Counter):
        return _encode_dict(value, leaf, where)
    if kind is set:
        return {_key(item, where) for item in value}
    if kind is bytes:
        return {MARK: "bytes", "data": leaf(where, _tensor_of_bytes(value))}
    if kind in (np.ndarray, np.memmap):
        data = leaf(where, _tensor_of_bytes(value.tobytes()))
        return {MARK: "array", "dtype": _describe(value.dtype, where), "shape": value.shape, "data": data}
    if isinstance(value, np.generic):
        return {MARK: "scalar", "dtype": _describe(value.dtype, where), "hex": value.tobytes().hex()}
    raise CheckpointError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold: loading it would run "
        f"code. It holds {HELD}. Return one of these from state_dict(), for example dict(value) or value.item()."
    )


def shard_mark(key: str) -> dict[str, str]:
    """What stands in an encoded state for a sharded tensor, which is kept elsewhere under this key."""
    return {MARK: "shard", "key": key}


def no_shards(key: str) -> Any:
    """Refuse a sharded tensor."""
    raise CheckpointError(
        f"{key} was saved in shards, each by its own replica. Load the checkpoint through "
        f"swell.checkpoint.sharded.ShardedStore, on any number of replicas."
    )


def decode(value: Any, *, shard: Callable[[str], Any] = no_shards) -> Any:
    """The value that ``encode`` was given; tensors are left as they are, ``shard`` gives the sharded one of a key."""
    kind = type(value)
    if kind is list:
        return [decode(item, shard=shard) for item in value]
    if kind is tuple:
        return tuple([decode(item, shard=shard) for item in value])
    if kind is dict:
        if MARK in value:
            return shard(value["key"]) if value[MARK] == "shard" else _decode_marked(value)
        return {key: decode(item, shard=shard) for key, item in value.items()}
    if kind is OrderedDict:
        ordered = OrderedDict((key, decode(item, shard=shard)) for key, item in value.items())
        if hasattr(value, "_metadata"):
            ordered._metadata = decode(value._metadata)  # pyright: ignore[reportAttributeAccessIssue]
        return ordered
    return value


def plain_tensor(where: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its history, where it is; a sharded, sparse, quantized or empty-handed one is refused."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and not isinstance(tensor, torch.nn.Buffer):
        sharded = type(tensor).__name__ in ("DTensor", "ShardedTensor")
        mend = "Save it through swell.checkpoint.sharded." if sharded else "Give the plain tensor it stands for."
        raise CheckpointError(f"{where} is a {type(tensor).__name__}, expected a torch.Tensor. {mend}")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        what = "on the meta device" if tensor.is_meta else "quantized" if tensor.is_quantized else f"{tensor.layout}"
        raise CheckpointError(
            f"{where} is a tensor that is {what}; a checkpoint holds dense tensors with data. "
            f"Give tensor.to_dense(), tensor.dequantize() or a tensor on a real device."
        )
    return tensor.detach().resolve_conj().resolve_neg()


def host_tensor(where: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in host memory, with a storage of its own size: a slice does not drag its whole base along."""
    tensor = plain_tensor(where, tensor).cpu()
    if tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size():
        tensor = tensor.clone()
    return tensor


def _encode_dict(value: Any, leaf: Leaf, where: str) -> Any:
    if MARK in value:
        raise CheckpointError(f"{where} has the key {MARK!r}, which checkpoints keep for themselves. Rename the key.")
    items = {_key(key, where): encode(item, leaf=leaf, where=f"{where}[{key!r}]") for key, item in value.items()}
    if type(value) is dict:
        return items
    if type(value) is Counter:
        return Counter(items)
    ordered = OrderedDict(items)
    if hasattr(value, "_metadata"):  # the versions of modules, which load_state_dict looks at
        ordered._metadata = encode(value._metadata, leaf=leaf, where=f"{where}._metadata")  # pyright: ignore[reportAttributeAccessIssue]
    return ordered


def _key(key: Any, where: str) -> Any:
    if type(key) is tuple:
        return tuple(_key(item, where) for item in key)
    if type(key) not in (str, int, float, bool, type(None)) or (
        type(key) is int and key.bit_length() > _LARGEST_INT_BITS
    ):
        raise CheckpointError(
            f"{where} has {key!r} of type {type(key).__name__} as a key or set member, expected str, int, float, bool, "
            f"None or a tuple of these. Use str(key) or key.item()."
        )
    return key


def _describe(dtype: np.dtype, where: str) -> Any:
    described = None if dtype.hasobject else np.lib.format.dtype_to_descr(dtype)
    if described is None or np.lib.format.descr_to_dtype(described) != dtype:
        raise CheckpointError(
            f"{where} is a numpy value of dtype {dtype}, which has no plain description: its items are Python objects "
            f"or of a type numpy does not know. Give a list, or an array of numbers."
        )
    return described


def _tensor_of_bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def _array(data: bytes, described: Any, shape: tuple[int, ...]) -> np.ndarray:
    dtype = np.lib.format.descr_to_dtype(described)
    return np.ndarray(shape, dtype, buffer=bytearray(data)) if data else np.empty(shape, dtype)


def _decode_marked(value: dict[str, Any]) -> Any:
    try:
        if value[MARK] == "int":
            return int(value["hex"], 16)
        if value[MARK] == "bytes":
            return _bytes_of(value["data"])
        if value[MARK] == "array":
            return _array(_bytes_of(value["data"]), value["dtype"], tuple(value["shape"]))
        if value[MARK] == "scalar":
            return _array(bytes.fromhex(value["hex"]), value["dtype"], ())[()]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"a {value[MARK]!r} in the checkpoint cannot be read: {error}. swell does not write such a value."
        ) from error
    raise CheckpointError(
        f"the checkpoint holds a value of kind {value[MARK]!r}, which this version of swell does not know. "
        f"Upgrade swell."
    )
