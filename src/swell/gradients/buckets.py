"""Which gradients travel together, in which order, and in which memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from swell.core.protocols import PendingSum
from swell.gradients.norms import WIDE

_ALIGNMENT = 64  # elements; buckets begin where every network's fast way may
MIB = 2**20
LEAST_BYTES, FIRST_BYTES, LARGEST_BYTES = MIB, 8 * MIB, 25 * MIB  # of a bucket, of the first one, and of any
PARTS = 6  # buckets or so at least: the last one travels when there is nothing left to compute
WORTH_BYTES = 4 * MIB  # of a bucket, where there are more than two
SINGLE_BYTES = 3 * MIB // 2  # of a gradient on the CPU that is a bucket by itself; smaller ones are copied sooner
FEW_BYTES = 4 * MIB  # of all gradients, so few that none is a bucket by itself
# Of all gradients, where the last bucket has room for numbers: between two steps all buckets travel with a vote.
CARRYING_BYTES = 16 * MIB
_MOST_KEPT = 2**25 - 2**16  # bytes; glibc lets no larger block raise what it keeps


@dataclass
class Bucket:
    """Some parameters and the memory that their gradients travel in.

    Those of a single large gradient have none between two steps: it travels where it was computed.
    """

    indices: list[int]
    flat: Tensor
    views: list[Tensor]
    watched: int  # parameters whose gradients are reported by a hook; all of them, or the bucket waits for the step
    single: Tensor | None = None  # the parameter, where it is one with a large gradient
    extended: Tensor | None = None  # ``flat`` with room for numbers after it, in the last bucket of a small network
    missing: int = 0  # of those that are watched, gradients that the backward pass under way has not reached
    codes: list[str] = field(default_factory=list)
    flight: PendingSum | None = None
    version: int = 0  # of ``flat`` when it was sent

    def take_place(self, *, in_place: bool) -> None:
        """Before a single gradient is packed: use the memory it was computed in, if that is its own, or else new one.

        ``in_place`` unless what travels is not what lies in ``.grad``.
        """
        if self.single is None:
            return
        gradient = self.single.grad
        if in_place and gradient is not None and is_alone(gradient, self.single):
            self.flat = gradient.as_strided((gradient.numel(),), (1,), gradient.storage_offset())
            self.views = [gradient]
        else:
            self.flat = torch.empty(self.single.numel(), dtype=self.single.dtype)
            self.views = _views([self.single], self.flat)

    def blank(self) -> Tensor:
        """Zeros that travel between two steps, where its gradients would."""
        return self.flat.zero_() if self.single is None else torch.zeros(self.single.numel(), dtype=self.single.dtype)

    def let_go(self) -> None:
        """The step is over: a single gradient is free as soon as nobody else holds it."""
        if self.single is not None:
            self.flat, self.views = _NOTHING, []


_NOTHING = torch.empty(0)


def is_alone(gradient: Tensor, parameter: Tensor) -> bool:
    """Whether a gradient lies as its parameter does, in memory that no other tensor uses.

    A gradient may share its memory with one that the same backward pass still reads, or with a tensor of the script's.
    """
    return (
        type(gradient) is Tensor
        and gradient.layout is torch.strided
        and gradient.dtype == parameter.dtype
        and gradient.stride() == parameter.stride()
        and _is_dense(gradient)
        and not (gradient.requires_grad or gradient.is_neg() or gradient.is_conj())
        and _users(gradient) == 1
    )


def _users(tensor: Tensor) -> int:
    """How many tensors use its memory; 0 where torch does not say."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    return 0 if count is None else count(tensor.untyped_storage()._cdata) - 1  # without the one that asks


def keep_freed_memory() -> None:
    """Let the C library keep memory that is freed, up to 64 MB, for what is computed next.

    Otherwise glibc gives much of it back to the system and has it zeroed again, in every step. It keeps twice the size
    of the largest block that was ever freed, up to 32 MB each, and nothing needs to be written there.
    """
    torch.empty(_MOST_KEPT, dtype=torch.uint8)


Kind = tuple[torch.dtype, torch.device]
Group = tuple[Kind, bool]  # and whether it needs a gradient


def _kind(parameter: Tensor) -> Kind:
    return WIDE.get(parameter.dtype, parameter.dtype), parameter.device


def _group(parameter: Tensor) -> Group:
    return _kind(parameter), parameter.requires_grad


def _bytes(parameter: Tensor) -> int:
    return parameter.numel() * _kind(parameter)[0].itemsize


def _is_single(parameter: Tensor) -> bool:
    """Whether its gradient is a bucket by itself: to copy it would take longer than one more exchange."""
    return (
        parameter.is_cpu
        and parameter.requires_grad
        and parameter.is_floating_point()
        and parameter.dtype not in WIDE
        and _is_dense(parameter)
        and _bytes(parameter) >= SINGLE_BYTES
    )


def _may_carry(parameters: Sequence[Tensor]) -> bool:
    """Whether the gradients are few, on the CPU, and of one type that holds whole numbers below 65,536."""
    groups = {_group(parameter) for parameter in parameters}
    if len(groups) != 1 or sum(map(_bytes, parameters)) > CARRYING_BYTES:
        return False
    (((dtype, device), needs_gradient),) = groups
    return device.type == "cpu" and needs_gradient and dtype in (torch.float32, torch.float64)


class Buckets:
    """Puts parameters into buckets, in any order, and again in another one, within the same memory.

    Where all gradients together are small and on the CPU, the last bucket has ``room`` for that many elements more. One
    of little is the last whenever it is complete, because single gradients have no room.
    """

    def __init__(self, parameters: Sequence[Tensor], *, room: int = 0) -> None:
        self._parameters = parameters
        few = sum(map(_bytes, parameters)) <= FEW_BYTES
        self._single = [not few and _is_single(parameter) for parameter in parameters]
        self._room = room if _may_carry(parameters) and not all(self._single) else 0
        sizes: dict[Kind, int] = {}
        self._totals: dict[Group, int] = {}  # bytes
        for parameter, single in zip(parameters, self._single, strict=True):
            kind, group = _kind(parameter), _group(parameter)
            if not single:
                sizes[kind] = sizes.get(kind, 0) + _aligned(parameter.numel())
                self._totals[group] = self._totals.get(group, 0) + _bytes(parameter)
        self._memory = {
            kind: torch.zeros(size + self._room, dtype=kind[0], device=kind[1]) for kind, size in sizes.items()
        }

    def is_single(self, index: int) -> bool:
        """Whether this parameter's gradient travels where it was computed."""
        return self._single[index]

    def in_order(self, order: Sequence[int]) -> list[Bucket]:
        """Parameters of one type and device together, in the given order; those that need no gradient come last."""
        made = self._divided(order)
        place = {index: number for number, index in enumerate(order)}
        made.sort(key=lambda one: (not one[0][1], place[one[1][-1]]))  # by when they will be complete
        if self._room:
            last = max(number for number, (_, indices) in enumerate(made) if not self._single[indices[0]])
            if sum(_bytes(self._parameters[index]) for index in made[last][1]) <= LEAST_BYTES:
                made.append(made.pop(last))
        buckets: list[Bucket] = []
        used = dict.fromkeys(self._memory, 0)
        for (kind, _), indices in made:
            members = [self._parameters[index] for index in indices]
            if self._single[indices[0]]:
                buckets.append(Bucket(indices, _NOTHING, [], 1, single=members[0]))
                continue
            size = sum(member.numel() for member in members)
            # ``data`` has a version of its own, which tells whether somebody changed this bucket.
            flat = self._memory[kind][used[kind] : used[kind] + size].data
            watched = sum(member.requires_grad for member in members)
            buckets.append(Bucket(indices, flat, _views(members, flat), watched))
            used[kind] += _aligned(size)
        if self._room and buckets[-1].single is None:
            (memory,), flat = self._memory.values(), buckets[-1].flat
            buckets[-1].extended = memory[flat.storage_offset() :][: flat.numel() + self._room]
        return buckets

    def _divided(self, order: Sequence[int]) -> list[tuple[Group, list[int]]]:
        made: list[tuple[Group, list[int]]] = []
        filling: dict[Group, list[int]] = {}
        counts = dict.fromkeys(self._totals, 0)
        room = dict.fromkeys(self._totals, 0)
        for index in order:
            group = _group(self._parameters[index])
            if self._single[index]:
                made.append((group, [index]))
                continue
            if room[group] <= 0:  # full: a large gradient does not wait for those that would fit beside it
                room[group] = bucket_bytes(counts[group], self._totals[group])
                counts[group] += 1
                filling[group] = []
                made.append((group, filling[group]))
            filling[group].append(index)
            room[group] -= _bytes(self._parameters[index])
        return made


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def bucket_bytes(number: int, total: int) -> int:
    """How large a bucket is, by its number, of gradients of ``total`` bytes.

    Few, because every exchange has a price of its own. The first are smaller, so that the network is busy early.

    >>> [bucket_bytes(number, 400 * MIB) // MIB for number in range(4)], bucket_bytes(0, 12 * MIB) // MIB
    ([8, 16, 25, 25], 4)
    """
    part = max(total // PARTS, min(total // 2, WORTH_BYTES), LEAST_BYTES)
    return min(FIRST_BYTES << number, LARGEST_BYTES, part)


def _views(members: Sequence[Tensor], flat: Tensor) -> list[Tensor]:
    """The places of some gradients in the memory they share, one after the other."""
    views, first = [], flat.storage_offset()
    for parameter in members:
        strides = parameter.stride() if _is_dense(parameter) else parameter.contiguous().stride()
        views.append(flat.as_strided(parameter.size(), strides, first))
        first += parameter.numel()
    return views


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill their memory without gaps, in whatever order."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return tensor.numel() > 0 and last + 1 == tensor.numel()
