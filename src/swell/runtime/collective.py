"""How replicas exchange numbers, text and tensors: alone, or over torch process groups."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from swell.errors import ConfigError, WorldError
from swell.runtime.peer_failures import lost_peers_as_world_errors

_POLL = timedelta(seconds=0.5)  # how often a wait checks whether a peer is known to be lost
_SETTLE_S = 1.0  # for exchanges to fail once their connections are cut
BUCKET_BYTES = 8 * 2**20  # tensors travel together up to this size
_LARGE_BYTES = 2**20  # a tensor of this size, whatever its layout, travels by itself, so that most need no copy
_AT_ONCE = 2  # buckets under way, so that the copies they need stay small
_SMALL, _SMALL_SUMS = 2**12, 8  # elements of a sum that prepares others, and how many of them


class Alone:
    """A world of one process: every call returns at once."""

    rank = 0
    size = 1
    group = None
    control_group = None

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """The given numbers, as the only row."""
        return [[float(number) for number in numbers]]

    def gather_text(self, text: str) -> list[str]:
        """The given text, as the only one."""
        return [text]

    def sum_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        """Leave the tensors as they are."""

    def broadcast_tensors(self, tensors: Sequence[torch.Tensor], *, source: int) -> None:
        """Leave the tensors as they are."""
        _check_source(source, 1)

    def barrier(self) -> None:
        """Return at once."""


class TorchCollective:
    """Replicas of a torch process group.

    Numbers, text and CPU tensors travel over ``control_group``, a CPU group with the same ranks, so that they never
    wait for the device; tensors on a device travel over ``group``. With gloo both may be one group, but a second one
    lets numbers overtake gradients. A lost peer raises ``WorldError``.

    Sometimes gloo (torch 2.13) misses that a peer has closed its connection, and waits for it until the time-out. A
    failed exchange and code that knows of the loss set ``lost``, and the wait is given up; ``stuck`` then means that a
    gloo thread is still in it.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        control_group: dist.ProcessGroup | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.group = group
        self.control_group = group if control_group is None else control_group
        self.device = torch.device(device)
        self.lost = False
        self.stuck = False
        self._begun: list[dist.Work] = []  # exchanges that nobody has waited for yet
        self.underway: Callable[[], None] | None = None  # called while tensors are under way, for faults on purpose
        self.waiting: Callable[[], AbstractContextManager[None]] = nullcontext  # entered while this one waits for peers
        self.poll: Callable[[], None] = _nothing  # called now and then while it waits
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._sums_on_cpu = "gloo" in str(dist.get_backend(group))
        control_rank, control_size = dist.get_rank(self.control_group), dist.get_world_size(self.control_group)
        if (control_rank, control_size) != (self.rank, self.size):
            raise ConfigError(
                f"in the control group this process is rank {control_rank} of {control_size}; expected rank "
                f"{self.rank} of {self.size}, as in the main group. Make both groups from the same ranks in the "
                f"same order."
            )

    def release(self) -> None:
        """Let the groups go, so that their threads end; nothing can be exchanged afterwards."""
        for name in ("group", "control_group"):
            self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        if name in ("group", "control_group"):
            raise WorldError(
                "the process group was left; expected an open one. Exchange values before the job is closed, or make "
                "another job."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """Every rank's float64 numbers, in rank order; every rank gives the same number of them."""
        if self.size == 1:
            return [[float(number) for number in numbers]]
        with lost_peers_as_world_errors("gathering numbers"):
            return self._rows_of_all(torch.tensor(list(numbers), dtype=torch.float64)).tolist()

    def gather_text(self, text: str) -> list[str]:
        """Every rank's text, in rank order; lengths may differ."""
        if self.size == 1:
            return [text]
        encoded = text.encode()
        lengths = [int(row[0]) for row in self.gather_numbers([len(encoded)])]
        if max(lengths) == 0:
            return [""] * self.size
        mine = torch.zeros(max(lengths), dtype=torch.uint8)
        if encoded:
            mine[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        with lost_peers_as_world_errors("gathering text"):
            rows = self._rows_of_all(mine)
        return [bytes(row[:length].numpy()).decode() for row, length in zip(rows, lengths, strict=True)]

    def _rows_of_all(self, mine: torch.Tensor) -> torch.Tensor:
        """Every rank's tensor of one dimension, as a row of one; all have the same size.

        Every rank sends its own to each other one. Gloo gathers in a longer way: around a ring, through a copy that is
        made in a thread of its own, whose first tensor takes 2 MB with some builds of torch.
        """
        rows = torch.empty(self.size, len(mine), dtype=mine.dtype)
        copies = mine.expand(self.size, -1).contiguous()
        self.finish(self.control_group.alltoall_base(rows, copies, [], []))
        return rows

    @torch.no_grad()
    def sum_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum over ranks, in place and in its own dtype.

        Tensors of one dtype and device travel together; a large contiguous one travels without a copy.
        """
        if self.size == 1:
            return
        with lost_peers_as_world_errors("summing tensors"):
            self._send(tensors, partial(dist.all_reduce, async_op=True), underway=self.underway)

    @property
    def overlaps(self) -> bool:
        """Whether sums that are under way leave the way free for numbers."""
        return self.size > 1 and self.group is not self.control_group

    def prepare_sums(self) -> None:
        """Before the first sum on the CPU: let gloo's threads allocate what they keep, by some small ones.

        For a large sum each of them needs up to 2 MB, and frees it afterwards. What it allocates meanwhile for the
        first time, and keeps, would divide that memory, so that the next sum needs as much again.
        """
        if self.size > 1 and self.device.type == "cpu" and self._sums_on_cpu:
            sums = [self.begin_sum(torch.zeros(_SMALL)) for _ in range(_SMALL_SUMS)]
            for pending in sums:
                pending.wait()

    def begin_sum(self, tensor: torch.Tensor, *, narrow: bool = False) -> PendingTensor:
        """Begin to replace a contiguous tensor by its sum over ranks; ``wait`` for it before the tensor is used.

        It travels over ``group``, beside numbers and text. Every rank begins the same sums in the same order. With
        ``narrow`` its numbers travel as bfloat16: what each rank gives is rounded, added up in the tensor's own type,
        and the sum is rounded, the same on all ranks.
        """
        with lost_peers_as_world_errors("summing tensors"):
            group = self.group if tensor.device.type != "cpu" or self._sums_on_cpu else self.control_group
            if narrow:
                pieces = _narrow_pieces(tensor, self.size)
                received = _room_for(pieces, tensor)
                work = dist.all_to_all_single(_as_bytes(received), _as_bytes(pieces), group=group, async_op=True)
                pending = PendingNarrow(self, tensor, received, self.begin(work), group, pieces=pieces)
            else:
                work = group.allreduce([tensor])  # what ``dist.all_reduce`` calls, which takes a third longer
                pending = PendingTensor(self, tensor, self.begin(work))
        if self.underway is not None:
            self.underway()
        return pending

    @torch.no_grad()
    def broadcast_tensors(self, tensors: Sequence[torch.Tensor], *, source: int) -> None:
        """Overwrite each tensor with the source rank's, in place; shapes and dtypes must be the same everywhere."""
        _check_source(source, self.size)
        if self.size == 1:
            return
        with lost_peers_as_world_errors("broadcasting tensors"):
            self._send(tensors, partial(dist.broadcast, group_src=source, async_op=True))

    def barrier(self) -> None:
        """Return once every rank has called it; it does not wait for the device."""
        if self.size > 1:
            with lost_peers_as_world_errors("waiting for the other workers"):
                self.finish(dist.all_reduce(torch.zeros(1), group=self.control_group, async_op=True))

    def finish(self, work: dist.Work | None, *, on_device: bool = False) -> None:
        """Wait until an exchange is done; one on a device is only queued."""
        if work is None:
            return
        if on_device:
            work.wait()
        else:
            with self.waiting():
                self._finish(work)
        self._begun = [other for other in self._begun if other is not work]

    def settle(self) -> None:
        """The connections were cut: give every exchange under way a moment to fail; ``stuck`` where one does not."""
        deadline = time.monotonic() + _SETTLE_S
        while any(not work.is_completed() for work in self._begun):
            if time.monotonic() > deadline:
                self.stuck = True
                return
            time.sleep(0.001)

    def begin(self, work: dist.Work | None) -> dist.Work | None:
        """Count an exchange as one that is under way, until ``finish``."""
        if work is not None:
            self._begun.append(work)
        return work

    def _finish(self, work: dist.Work) -> None:
        while True:
            try:
                self.poll()
                work.wait(_POLL)
                return
            except RuntimeError:
                if work.is_completed():  # it failed, or has ended between the time-out of the wait and this line
                    self._hear(work)
                    return
                if self.lost:
                    self.stuck = True
                    raise WorldError(
                        "a worker was lost and the exchange with it did not end; expected every worker to answer. "
                        "Form the world again."
                    ) from None

    def _hear(self, work: dist.Work) -> None:
        try:
            work.wait()
        except RuntimeError:
            self.lost = True  # nothing that comes after a failed exchange can be trusted to end
            raise

    def _send(
        self,
        tensors: Sequence[torch.Tensor],
        begin: Callable[..., dist.Work | None],
        *,
        underway: Callable[[], None] | None = None,
    ) -> None:
        """Exchange tensors in buckets, a few under way at a time, and copy each back to where it came from."""
        flights: deque[Flight] = deque()
        for bucket, flat in _flattened(tensors):
            if len(flights) == _AT_ONCE:
                self._land(*flights.popleft())
            flights.append((bucket, flat, self.begin(begin(flat, group=self._group_of(flat)))))
        if underway is not None:
            underway()
        for flight in flights:
            self._land(*flight)

    def _land(self, bucket: Bucket, flat: torch.Tensor, work: dist.Work | None) -> None:
        self.finish(work, on_device=flat.device.type != "cpu")
        if bucket:
            for tensor, piece in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
                tensor.copy_(piece.view_as(tensor))

    def _group_of(self, tensor: torch.Tensor) -> dist.ProcessGroup:
        return self.control_group if tensor.device.type == "cpu" else self.group


def _nothing() -> None:
    """Nobody watches."""


class PendingTensor:
    """A tensor whose sum over ranks is under way."""

    def __init__(self, collective: TorchCollective, tensor: torch.Tensor, work: dist.Work | None) -> None:
        self._collective, self._tensor, self._work = collective, tensor, work

    def advance(self) -> None:
        """Do nothing: it travels in one part."""

    def wait(self) -> None:
        """Return when the sum is there; on a device, when whatever is queued next will find it."""
        self.drop()

    def drop(self) -> None:
        """Return when nothing of it is under way."""
        work, self._work = self._work, None
        with lost_peers_as_world_errors("summing tensors"):
            self._collective.finish(work, on_device=self._tensor.device.type != "cpu")


class PendingNarrow(PendingTensor):
    """A sum that travels in bfloat16, in two parts: each rank adds up one piece of it, then gives that to all.

    ``pieces`` are what the ranks are sent, and later their sums. ``received`` may lie in the tensor's own memory.
    """

    def __init__(
        self,
        collective: TorchCollective,
        tensor: torch.Tensor,
        received: torch.Tensor,
        work: dist.Work | None,
        group: dist.ProcessGroup,
        *,
        pieces: torch.Tensor,
    ) -> None:
        super().__init__(collective, tensor, work)
        self._received, self._pieces, self._group = received, pieces, group
        self._own: torch.Tensor | None = None  # this rank's sum, which lives until all have it

    @torch.no_grad()
    def advance(self) -> None:
        """Add this rank's piece up and begin to give it to all."""
        if self._own is not None:
            return
        self.drop()
        self._own = self._received.sum(0, dtype=self._tensor.dtype).to(self._received.dtype)
        with lost_peers_as_world_errors("summing tensors"):
            work = _all_gather(_as_bytes(self._pieces), _as_bytes(self._own), self._group)
            self._work = self._collective.begin(work)

    def wait(self) -> None:
        """Return when the sum is there."""
        self.advance()
        self.drop()
        self._tensor.copy_(self._pieces.view(-1)[: self._tensor.numel()].view_as(self._tensor))


def _narrow_pieces(tensor: torch.Tensor, ranks: int) -> torch.Tensor:
    """The tensor in bfloat16, with one row for each rank; the last is filled up with zeros."""
    size = -(-tensor.numel() // ranks)
    pieces = torch.zeros(ranks, size, dtype=torch.bfloat16, device=tensor.device)
    pieces.view(-1)[: tensor.numel()] = tensor.detach().view(-1)
    return pieces


def _room_for(pieces: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Memory for as many pieces: that of the tensor they were made of, because the sum overwrites it anyway."""
    room = tensor.detach().view(-1).view(pieces.dtype)
    return room[: pieces.numel()].view_as(pieces) if room.numel() >= pieces.numel() else torch.empty_like(pieces)


def _all_gather(output: torch.Tensor, own: torch.Tensor, group: dist.ProcessGroup) -> dist.Work | None:
    single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name from torch 2.13 on
    return single(output, own, group=group, async_op=True)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its memory; not every backend sends bfloat16."""
    return tensor.view(-1).view(torch.uint8)


Bucket = list[torch.Tensor]
Flight = tuple[Bucket, torch.Tensor, "dist.Work | None"]


def _flattened(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[Bucket, torch.Tensor]]:
    """Each bucket with the one-dimensional tensor that travels for it: a view if possible, else a copy."""
    for bucket in _buckets(tensors):
        if len(bucket) == 1 and bucket[0].is_contiguous():
            yield [], bucket[0].view(-1)
        else:
            yield bucket, torch.cat([tensor.reshape(-1) for tensor in bucket])


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[Bucket]:
    kinds: dict[tuple[torch.dtype, torch.device], Bucket] = {}
    for tensor in tensors:
        if tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for kind in kinds.values():
        bucket: Bucket = []
        bucket_bytes = 0
        for tensor in kind:
            size = tensor.numel() * tensor.element_size()
            if size >= _LARGE_BYTES:
                yield [tensor]
                continue
            if bucket and bucket_bytes + size > BUCKET_BYTES:
                yield bucket
                bucket, bucket_bytes = [], 0
            bucket.append(tensor)
            bucket_bytes += size
        if bucket:
            yield bucket


def _check_source(source: int, size: int) -> None:
    if not 0 <= source < size:
        raise ConfigError(f"source is {source}; expected a rank of this world, 0 to {size - 1}.")
