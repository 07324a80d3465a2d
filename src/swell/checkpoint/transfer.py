"""A whole state sent from one replica to another in memory: text for its shape, bytes for its tensors, no pickle."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from swell.checkpoint.encoding import decode, encode, plain_tensor
from swell.core.protocols import Collective
from swell.errors import CheckpointError

_VERSION = 1


def pack(state: Any, *, device: torch.device | str | None = None) -> tuple[str, list[torch.Tensor]]:
    """The state as JSON text and one-dimensional uint8 tensors, each the bytes of one tensor of the state.

    The tensors share memory with the state wherever they can: send them before the next step changes it. With
    ``device`` all of them are brought there first; otherwise each stays where it is. Tensors that are one and the same
    memory are sent once. The state is made of what ``swell.checkpoint.encoding.HELD`` lists.

    >>> text, tensors = pack({"w": torch.tensor([1.0, 2.0]), "step": 3})
    >>> unpack(text, [tensor.clone() for tensor in tensors])
    {'w': tensor([1., 2.]), 'step': 3}
    """
    packer = _Packer(device)
    tree = packer.node(encode(state, leaf=packer.leaf))
    return json.dumps({"version": _VERSION, "tensors": packer.specs, "state": tree}), packer.tensors


def empty_like(text: str, *, device: torch.device | str | None = None) -> list[torch.Tensor]:
    """Tensors to receive into: as many, as long and on the same kind of device as ``pack`` gave, or on ``device``."""
    specs = _parsed(text)["tensors"]
    try:
        return [torch.empty(spec["bytes"], dtype=torch.uint8, device=device or spec["device"]) for spec in specs]
    except (KeyError, TypeError, RuntimeError) as error:
        raise _malformed(error) from error


def unpack(text: str, tensors: Sequence[torch.Tensor]) -> Any:
    """The state that was packed, on the memory of ``tensors``; every bit of every tensor is as it was."""
    parsed = _parsed(text)
    specs = parsed["tensors"]
    try:
        if [tensor.numel() for tensor in tensors] != [spec["bytes"] for spec in specs]:
            raise CheckpointError(
                f"{len(tensors)} tensors of {sum(t.numel() for t in tensors)} bytes were received, the sender "
                f"announced {len(specs)} of {sum(spec['bytes'] for spec in specs)}. Allocate them by empty_like(text)."
            )
        return decode(_value(parsed["state"], [_restored(*pair) for pair in zip(specs, tensors, strict=True)]))
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise _malformed(error) from error


def share_state(state: Any, *, collective: Collective, source: int, device: torch.device | str | None = None) -> Any:
    """The source rank's state, on every rank; the other ranks' ``state`` is not looked at.

    Every rank calls it. The source gets its own state back, not a copy.
    """
    sends = collective.rank == source
    text, tensors = pack(state, device=device) if sends else ("", [])
    text = collective.gather_text(text)[source]
    if not sends:
        tensors = empty_like(text, device=device)
    collective.broadcast_tensors(tensors, source=source)
    return state if sends else unpack(text, tensors)


class _Packer:
    """Collects tensors while the tree is walked; a tensor stands in the tree as its number."""

    def __init__(self, device: torch.device | str | None) -> None:
        self.device = device
        self.tensors: list[torch.Tensor] = []
        self.specs: list[dict[str, Any]] = []
        self._seen: dict[Any, tuple[_Placed, torch.Tensor]] = {}  # holds the tensors: an address may not come again

    def leaf(self, where: str, tensor: torch.Tensor) -> _Placed:
        tensor = plain_tensor(where, tensor)
        same = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and same in self._seen:
            return self._seen[same][0]
        original = tensor
        tensor = tensor if self.device is None else tensor.to(self.device)
        # Dense, in whatever order of dimensions: channels-last weights arrive as channels-last.
        stride = torch.empty_like(tensor, device="meta").stride()
        dense = tensor if tensor.stride() == stride else tensor.clone()
        placed = _Placed(len(self.tensors))
        self.tensors.append(_bytes_of(dense))
        self.specs.append(
            {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "stride": list(stride),
                "device": tensor.device.type,
                "bytes": tensor.numel() * tensor.element_size(),
            }
        )
        self._seen[same] = (placed, original)
        return placed

    def node(self, value: Any) -> Any:
        """Scalars of JSON as they are; everything else as a list that begins with its kind."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else ["float", repr(value)]
        if kind is _Placed:
            return ["tensor", value.number]
        if kind in (list, tuple, set):
            return [kind.__name__, *map(self.node, value)]
        if kind in (dict, Counter):
            return [kind.__name__, *(self.node(part) for item in value.items() for part in item)]
        if kind is OrderedDict:
            metadata = self.node(getattr(value, "_metadata", None))
            return ["OrderedDict", metadata, *(self.node(part) for item in value.items() for part in item)]
        if kind is complex:
            return ["complex", self.node(value.real), self.node(value.imag)]
        if kind is torch.Size:
            return ["Size", *value]
        if kind in (torch.dtype, torch.device):
            return [kind.__name__, str(value).removeprefix("torch.")]
        raise AssertionError(f"encode let a {kind} through")


class _Placed:
    def __init__(self, number: int) -> None:
        self.number = number


def _value(node: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The value a node was made from."""
    if type(node) is not list:
        return node
    kind, *rest = node
    if kind == "tensor":
        return tensors[rest[0]]
    if kind == "float":
        return float(rest[0])
    if kind in ("Size", "dtype", "device"):
        return {"Size": torch.Size, "dtype": lambda names: _dtype(*names), "device": lambda d: torch.device(*d)}[kind](
            rest
        )
    values = [_value(item, tensors) for item in rest]
    if kind == "list":
        return values
    if kind == "tuple":
        return tuple(values)
    if kind == "set":
        return set(values)
    if kind == "complex":
        return complex(*values)
    if kind in ("dict", "Counter"):
        pairs = dict(zip(values[::2], values[1::2], strict=True))
        return pairs if kind == "dict" else Counter(pairs)
    if kind == "OrderedDict":
        ordered = OrderedDict(zip(values[1::2], values[2::2], strict=True))
        if values[0] is not None:
            ordered._metadata = values[0]  # pyright: ignore[reportAttributeAccessIssue]
        return ordered
    raise ValueError(f"unknown kind {kind!r}")


def _bytes_of(dense: torch.Tensor) -> torch.Tensor:
    flat = dense.as_strided((dense.numel(),), (1,))
    return (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).view(torch.uint8)


def _restored(spec: dict[str, Any], data: torch.Tensor) -> torch.Tensor:
    return data.view(_dtype(spec["dtype"])).as_strided(spec["shape"], spec["stride"])


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {name!r}")
    return dtype


def _parsed(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
        version = parsed["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _malformed(error) from error
    if version != _VERSION:
        raise CheckpointError(
            f"the state was sent in form {version!r}, this replica reads form {_VERSION}: the replicas run different "
            f"versions of swell. Install one version on all of them."
        )
    if not isinstance(parsed.get("tensors"), list) or "state" not in parsed:
        raise _malformed(ValueError("it has no list of tensors or no state"))
    return parsed


def _malformed(error: Exception) -> CheckpointError:
    return CheckpointError(
        f"a state sent by another replica cannot be read: {error}. Expected what swell.checkpoint.transfer.pack gives; "
        f"check that every replica runs the same version of swell."
    )


def gather_values(collective: Collective, value: Any) -> list[Any]:
    """Every rank's value, in rank order; every rank calls it."""
    if collective.size == 1:
        return [value]
    text, tensors = pack(value, device="cpu")
    lines = "\n".join([text, *(bytes(tensor.numpy()).hex() for tensor in tensors)])
    return [_unpacked(message) for message in collective.gather_text(lines)]


def _unpacked(message: str) -> Any:
    text, *hexes = message.split("\n")
    return unpack(text, [torch.frombuffer(bytearray.fromhex(line), dtype=torch.uint8) for line in hexes])
