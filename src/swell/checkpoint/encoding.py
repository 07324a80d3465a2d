"""States as plain values, for files and for messages: other values are spelled out, unknown kinds are refused."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from swell.checkpoint.tensor_memory import dtype_name, named_dtype
from swell.errors import CheckpointError

Leaf = Callable[[str, torch.Tensor], Any]

MARK = "__swell__"  # the key of a dict that spells out a value
HELD = "dict, list, tuple, set, str, bytes, int, float, complex, bool, None, tensors, numpy arrays and numpy scalars"

# What a file (for torch's safe loader) or JSON text holds as it is; the other kinds are spelled out. Exact types: a
# subclass (an enum, a named tuple, a user's class) would come back as something else.
_ATOMS = frozenset({type(None), bool, str, float})
IN_JSON = _ATOMS | {list, dict}  # a dict if all its keys are text
IN_FILES = IN_JSON | {complex, torch.Size, torch.dtype, torch.device, tuple, set, OrderedDict, Counter}

# How kinds without items that JSON does not have are spelled out, and read again.
_SPELLINGS: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    complex: (repr, complex),
    torch.Size: (list, torch.Size),
    torch.dtype: (dtype_name, named_dtype),
    torch.device: (str, torch.device),
}
_READERS = {kind.__name__: read for kind, (_, read) in _SPELLINGS.items()}
_LARGEST_INT_BITS = 2000  # the safe loader reads integers of at most 255 bytes


def encode(value: Any, *, leaf: Leaf, where: str = "state", native: frozenset[type] = IN_FILES) -> Any:
    """The value with every container copied, every tensor passed through ``leaf`` and numpy spelled out.

    ``where`` names the value in errors. Kinds that are not in ``native`` are spelled out too. A kind that is not in
    ``HELD`` raises ``CheckpointError``. The few others that torch's own states hold are allowed: OrderedDict, Counter,
    torch.Size, torch.dtype, torch.device.

    >>> encode({"lr": [0.1, (1, None)]}, leaf=plain_tensor)
    {'lr': [0.1, (1, None)]}
    >>> encode((1, None), leaf=plain_tensor, native=IN_JSON)
    {'__swell__': 'tuple', 'value': [1, None]}
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
    if kind in (list, tuple):
        items = [encode(item, leaf=leaf, where=f"{where}[{i}]", native=native) for i, item in enumerate(value)]
        return items if kind is list else tuple(items) if kind in native else {MARK: "tuple", "value": items}
    if kind in (dict, OrderedDict, Counter):
        return _encode_dict(value, leaf, where, native)
    if kind is set:
        members = [encode(_key(item, where), leaf=leaf, where=where, native=native) for item in value]
        return set(members) if kind in native else {MARK: "set", "value": members}
    if kind in _SPELLINGS:
        return value if kind in native else {MARK: kind.__name__, "value": _SPELLINGS[kind][0](value)}
    if kind is bytes:
        return {MARK: "bytes", "data": leaf(where, tensor_of_bytes(value))}
    if kind in (np.ndarray, np.memmap):
        data = leaf(where, tensor_of_bytes(value.tobytes()))
        dtype = encode(_describe(value.dtype, where), leaf=leaf, native=native)
        return {MARK: "array", "dtype": dtype, "shape": value.shape, "data": data}
    if isinstance(value, np.generic):
        dtype = encode(_describe(value.dtype, where), leaf=leaf, native=native)
        return {MARK: "scalar", "dtype": dtype, "hex": value.tobytes().hex()}
    raise CheckpointError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold because loading it would "
        f"run code; expected one of {HELD}. Return one of these from state_dict(), for example dict(value) or "
        f"value.item()."
    )


def reference(key: Any) -> dict[str, Any]:
    """Stands in an encoded state for a tensor that is kept elsewhere under this key."""
    return {MARK: "shard", "key": key}


def refuse_shards(key: Any) -> Any:
    """Raise, because the tensor of this key was saved in shards."""
    raise CheckpointError(
        f"{key} was saved in shards, each by its own replica; expected a whole tensor. Load the checkpoint through "
        f"swell.checkpoint.sharded.ShardedStore, on any number of replicas."
    )


def decode(value: Any, *, resolve: Callable[[Any], Any] = refuse_shards) -> Any:
    """The value that ``encode`` was given; tensors stay as they are, ``resolve`` gives the tensor of a reference."""
    kind = type(value)
    if kind is list:
        return [decode(item, resolve=resolve) for item in value]
    if kind is tuple:
        return tuple([decode(item, resolve=resolve) for item in value])
    if kind is dict:
        if MARK in value:
            return _decode_marked(value, resolve)
        return {key: decode(item, resolve=resolve) for key, item in value.items()}
    if kind is OrderedDict:
        items = [(key, decode(item, resolve=resolve)) for key, item in value.items()]
        return _ordered(items, decode(getattr(value, "_metadata", None)))
    return value


def plain_tensor(where: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its history, on its device; sharded, sparse, quantized and meta tensors are refused."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and not isinstance(tensor, torch.nn.Buffer):
        sharded = type(tensor).__name__ in ("DTensor", "ShardedTensor")
        advice = "Save it through swell.checkpoint.sharded." if sharded else "Give the plain tensor it stands for."
        raise CheckpointError(f"{where} is a {type(tensor).__name__}; expected a torch.Tensor. {advice}")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "on the meta device" if tensor.is_meta else "quantized" if tensor.is_quantized else f"{tensor.layout}"
        raise CheckpointError(
            f"{where} is a tensor that is {kind}; expected a dense tensor with data. "
            f"Give tensor.to_dense(), tensor.dequantize() or a tensor on a real device."
        )
    return tensor.detach().resolve_conj().resolve_neg()


def host_tensor(where: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in host memory, with a storage of its own size: a slice is saved without its base."""
    tensor = plain_tensor(where, tensor).cpu()
    if tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size():
        tensor = tensor.clone()
    return tensor


def tensor_of_bytes(data: bytes) -> torch.Tensor:
    """A copy of the bytes as a one-dimensional uint8 tensor."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _encode_dict(value: Any, leaf: Leaf, where: str, native: frozenset[type]) -> Any:
    if MARK in value:
        raise CheckpointError(
            f"{where} has the key {MARK!r}; expected any other key: checkpoints need this one. Rename the key."
        )
    kind = type(value)
    items = {
        _key(key, where): encode(item, leaf=leaf, where=f"{where}[{key!r}]", native=native)
        for key, item in value.items()
    }
    # The versions of modules, which load_state_dict looks at.
    metadata = getattr(value, "_metadata", None) if kind is OrderedDict else None
    metadata = encode(metadata, leaf=leaf, where=f"{where}._metadata", native=native)
    if kind not in native or (native is IN_JSON and any(type(key) is not str for key in items)):
        pairs = [[encode(key, leaf=leaf, where=where, native=native), item] for key, item in items.items()]
        return {MARK: kind.__name__, "value": pairs, "metadata": metadata}
    return _ordered(items, metadata) if kind is OrderedDict else items if kind is dict else Counter(items)


def _ordered(items: Any, metadata: Any) -> OrderedDict[Any, Any]:
    ordered = OrderedDict(items)
    if metadata is not None:
        ordered._metadata = metadata  # pyright: ignore[reportAttributeAccessIssue]
    return ordered


def _key(key: Any, where: str) -> Any:
    if type(key) is tuple:
        return tuple(_key(item, where) for item in key)
    if type(key) not in (str, int, float, bool, type(None)) or (
        type(key) is int and key.bit_length() > _LARGEST_INT_BITS
    ):
        raise CheckpointError(
            f"{where} has the key or set member {key!r} of type {type(key).__name__}; expected str, int, float, bool, "
            f"None or a tuple of these. Use str(key) or key.item()."
        )
    return key


def _describe(dtype: np.dtype, where: str) -> Any:
    description = None if dtype.hasobject else np.lib.format.dtype_to_descr(dtype)
    if description is None or np.lib.format.descr_to_dtype(description) != dtype:
        raise CheckpointError(
            f"{where} is a numpy value of dtype {dtype}; expected a dtype of numbers, text or times, not of Python "
            f"objects or of a type numpy does not know. Give a list, or an array of numbers."
        )
    return description


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def _array(data: bytes, description: Any, shape: tuple[int, ...]) -> np.ndarray:
    dtype = np.lib.format.descr_to_dtype(description)
    if dtype.hasobject:  # numpy would take the bytes for addresses of objects
        raise ValueError(f"dtype {dtype} is of Python objects")
    return np.ndarray(shape, dtype, buffer=bytearray(data)) if data else np.empty(shape, dtype)


def _decode_marked(value: dict[str, Any], resolve: Callable[[Any], Any]) -> Any:
    kind = value[MARK]
    try:
        if kind == "shard":
            return resolve(value["key"])
        if kind in ("tuple", "set"):
            return {"tuple": tuple, "set": set}[kind](decode(value["value"], resolve=resolve))
        if kind in ("dict", "Counter", "OrderedDict"):
            pairs = [(key, item) for key, item in decode(value["value"], resolve=resolve)]
            if kind == "OrderedDict":
                return _ordered(pairs, decode(value["metadata"], resolve=resolve))
            return dict(pairs) if kind == "dict" else Counter(dict(pairs))
        if kind == "int":
            return int(value["hex"], 16)
        if kind == "bytes":
            return _bytes_of(decode(value["data"], resolve=resolve))
        if kind == "array":
            data = _bytes_of(decode(value["data"], resolve=resolve))
            return _array(data, decode(value["dtype"]), tuple(value["shape"]))
        if kind == "scalar":
            return _array(bytes.fromhex(value["hex"]), decode(value["dtype"]), ())[()]
        if kind in _READERS:
            return _READERS[kind](value["value"])
    except CheckpointError:
        raise
    except (KeyError, IndexError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"a value of kind {kind!r} cannot be read: {error}; expected what swell writes. Do not trust its source."
        ) from error
    raise CheckpointError(
        f"a value is of kind {kind!r}; expected a kind that this version of swell knows. Upgrade swell."
    )
