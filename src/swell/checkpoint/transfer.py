"""States sent between replicas in memory: text for the structure, bytes for the tensors, no pickle."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, TypeVar, overload

import torch

from swell.checkpoint.encoding import IN_JSON, decode, encode, plain_tensor, reference, tensor_of_bytes
from swell.checkpoint.tensor_memory import dense_stride, dtype_name, flat_bytes, identity, named_dtype
from swell.core.protocols import Collective
from swell.errors import CheckpointError

Value = TypeVar("Value")

_VERSION = 3


def pack(state: Any, *, device: torch.device | str | None = None) -> tuple[str, list[torch.Tensor]]:
    """The state as JSON text and one-dimensional uint8 tensors, each the bytes of one tensor of the state.

    The tensors share memory with the state wherever they can: send them before the next step changes it. With
    ``device`` all of them are copied there first; otherwise each stays on its own. Memory that appears twice is sent
    once. The state is made of the kinds in ``swell.checkpoint.encoding.HELD``.

    >>> text, tensors = pack({"w": torch.tensor([1.0, 2.0]), "step": 3})
    >>> unpack(text, [tensor.clone() for tensor in tensors])
    {'w': tensor([1., 2.]), 'step': 3}
    """
    packer = _Packer(device)
    structure = encode(state, leaf=packer.leaf, native=IN_JSON)
    return json.dumps({"version": _VERSION, "tensors": packer.specs, "state": structure}), packer.tensors


def empty_like(text: str, *, device: torch.device | str | None = None, own: Any = None) -> list[torch.Tensor]:
    """Tensors to receive into: the lengths and device types that ``pack`` gave, or all of them on ``device``.

    Those that ``own`` has at the same place of its structure, in the same form, are its own memory.
    """
    mine = _Packer(device)
    encode(own, leaf=mine.leaf, native=IN_JSON)
    held = {str(spec): tensor for spec, tensor in zip(mine.specs, mine.tensors, strict=True)}

    def memory(spec: dict[str, Any]) -> torch.Tensor:
        if (found := held.pop(str(spec), None)) is not None:
            return found
        return torch.empty(spec["bytes"], dtype=torch.uint8, device=device or spec["device"])

    specs = _parsed(text)["tensors"]
    try:
        return [memory(spec) for spec in specs]
    except (KeyError, TypeError, RuntimeError) as error:
        raise _malformed(error) from error


def unpack(text: str, tensors: Sequence[torch.Tensor]) -> Any:
    """The state that was packed, in the memory of ``tensors``; every bit of every tensor is unchanged."""
    message = _parsed(text)
    specs = message["tensors"]
    try:
        if [tensor.numel() for tensor in tensors] != [spec["bytes"] for spec in specs]:
            raise CheckpointError(
                f"the tensors are {len(tensors)} of {sum(t.numel() for t in tensors)} bytes; expected what the sender "
                f"announced: {len(specs)} of {sum(spec['bytes'] for spec in specs)}. Allocate them by empty_like(text)."
            )
        originals = [_restored(*pair) for pair in zip(specs, tensors, strict=True)]
        return decode(message["state"], resolve=originals.__getitem__)
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise _malformed(error) from error


def share_state(
    state: Any,
    *,
    collective: Collective,
    source: int,
    device: torch.device | str | None = None,
    own: Any = None,
) -> Any:
    """The source rank's state, on every rank; the other ranks' ``state`` is ignored.

    Every rank calls it. The source gets its own state back, not a copy. What another rank has of such a state may be
    given as ``own``: tensors of the same form are received into their memory, and not held twice. If a rank is lost
    meanwhile, a part of them may be written over.
    """
    sends = collective.rank == source
    text, tensors = pack(state, device=device) if sends else ("", [])
    text = collective.gather_text(text)[source]
    if not sends:
        tensors = empty_like(text, device=device, own=own)
    collective.broadcast_tensors(tensors, source=source)
    return state if sends else unpack(text, tensors)


@overload
def gather_values(collective: Collective, value: Value, *, destination: None = None) -> list[Value]: ...


@overload
def gather_values(collective: Collective, value: Value, *, destination: int) -> list[Value] | None: ...


def gather_values(collective: Collective, value: Value, *, destination: int | None = None) -> list[Value] | None:
    """Every rank's value, in rank order, with its tensors in host memory; every rank calls it.

    With ``destination`` that rank alone gets the list, the others None: unpacking takes longer than the exchange. A
    value is made of the kinds in ``swell.checkpoint.encoding.HELD``; it should be small, because it travels as text. A
    single process gets its own value back, not a copy.
    """
    if collective.size == 1:
        return [value] if destination in (None, 0) else None
    text, tensors = pack(value, device="cpu")
    lines = [text, *(b64encode(tensor.numpy().data).decode() for tensor in tensors)]
    messages = collective.gather_text("\n".join(lines))
    return [_unpacked(message) for message in messages] if destination in (None, collective.rank) else None


def _unpacked(message: str) -> Any:
    text, *tensors = message.split("\n")
    return unpack(text, [tensor_of_bytes(b64decode(line)) for line in tensors])


class _Packer:
    """Collects the tensors of a state; in the structure each is a reference to its number."""

    def __init__(self, device: torch.device | str | None) -> None:
        self.device = device
        self.tensors: list[torch.Tensor] = []
        self.specs: list[dict[str, Any]] = []
        self._numbers: dict[Any, tuple[int, torch.Tensor]] = {}  # by identity, with the tensor of that identity

    def leaf(self, where: str, tensor: torch.Tensor) -> dict[str, Any]:
        tensor = plain_tensor(where, tensor)
        key = identity(tensor)
        if tensor.numel() and key in self._numbers:
            return reference(self._numbers[key][0])
        number = len(self.tensors)
        self._numbers[key] = number, tensor
        tensor = tensor if self.device is None else tensor.to(self.device)
        stride = dense_stride(tensor)
        self.tensors.append(flat_bytes(tensor if tensor.stride() == stride else tensor.clone()))
        self.specs.append(
            {
                "place": where,
                "dtype": dtype_name(tensor.dtype),
                "shape": list(tensor.shape),
                "stride": list(stride),
                "device": tensor.device.type,
                "bytes": tensor.numel() * tensor.element_size(),
            }
        )
        return reference(number)


def _restored(spec: dict[str, Any], data: torch.Tensor) -> torch.Tensor:
    return data.view(named_dtype(spec["dtype"])).as_strided(spec["shape"], spec["stride"])


def _parsed(text: str) -> dict[str, Any]:
    try:
        message = json.loads(text)
        version = message["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _malformed(error) from error
    if version != _VERSION:
        raise CheckpointError(
            f"the state was sent in form {version!r}; expected form {_VERSION}: the replicas run different versions of "
            f"swell. Install one version on all of them."
        )
    if not isinstance(message.get("tensors"), list) or "state" not in message:
        raise _malformed(ValueError("it has no list of tensors or no state"))
    return message


def _malformed(error: Exception) -> CheckpointError:
    return CheckpointError(
        f"a state sent by another replica cannot be read: {error}; expected what swell.checkpoint.transfer.pack gives. "
        f"Run the same version of swell on every replica."
    )
