"""What replicas tell one another: alone, or over torch process groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from swell.errors import ConfigError, WorldError
from swell.runtime.peer_failures import lost_peers_as_world_errors

_LOOK = timedelta(seconds=0.5)  # how long a wait lasts before it is asked whether a peer is known to be gone
BUCKET_BYTES = 32 * 2**20  # tensors travel together up to this much, so that the copy they need stays small


class Alone:
    """A world of one process: every call returns at once."""

    rank = 0
    size = 1
    group = None
    control_group = None

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers given, as the only row."""
        return [[float(number) for number in numbers]]

    def gather_text(self, text: str) -> list[str]:
        """The text given, as the only one."""
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

    Numbers, text and CPU tensors travel over ``control_group``, a group of CPU workers with the same ranks, so that
    nothing said between replicas waits for the device; tensors on a device travel over ``group``. With gloo both may be
    one group, but a second one lets numbers overtake gradients. Every lost peer surfaces as ``WorldError``.

    Once in a while gloo (torch 2.13) misses that a peer has closed its connection and waits for it until the time-out.
    Whoever knows that a peer is gone sets ``lost``, and the wait is given up; ``stuck`` then says that a thread of gloo
    is still in it.
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
        self.underway: Callable[[], None] | None = None  # called while tensors are on their way, to fail there
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        same = (dist.get_rank(self.control_group), dist.get_world_size(self.control_group))
        if same != (self.rank, self.size):
            raise ConfigError(
                f"the control group places this process at rank {same[0]} of {same[1]}, the main group at rank "
                f"{self.rank} of {self.size}. Make both from the same ranks in the same order."
            )

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """Every rank's float64 numbers, in rank order; every rank gives equally many."""
        if self.size == 1:
            return [[float(number) for number in numbers]]
        mine = torch.tensor(list(numbers), dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        with lost_peers_as_world_errors("gathering numbers"):
            self.finish(dist.all_gather(rows, mine, group=self.control_group, async_op=True))
        return [row.tolist() for row in rows]

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
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        with lost_peers_as_world_errors("gathering text"):
            self.finish(dist.all_gather(rows, mine, group=self.control_group, async_op=True))
        return [bytes(row[:length].numpy()).decode() for row, length in zip(rows, lengths, strict=True)]

    @torch.no_grad()
    def sum_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum over ranks, in place and in its own dtype.

        Tensors of one dtype and device travel together; a large contiguous one travels without a copy.
        """
        if self.size == 1:
            return
        with lost_peers_as_world_errors("summing tensors"):
            flights = [
                (bucket, flat, dist.all_reduce(flat, group=self._group_of(flat), async_op=True))
                for bucket, flat in _flattened(tensors)
            ]
            if self.underway is not None:
                self.underway()
            self._land(flights)

    @torch.no_grad()
    def broadcast_tensors(self, tensors: Sequence[torch.Tensor], *, source: int) -> None:
        """Overwrite each tensor with the source rank's, in place; shapes and dtypes must be the same everywhere."""
        _check_source(source, self.size)
        if self.size == 1:
            return
        with lost_peers_as_world_errors("broadcasting tensors"):
            flights = []
            for bucket, flat in _flattened(tensors):
                group = self._group_of(flat)
                root = dist.get_global_rank(group, source)
                flights.append((bucket, flat, dist.broadcast(flat, src=root, group=group, async_op=True)))
            self._land(flights)

    def barrier(self) -> None:
        """Return once every rank has called it; the device is not waited for."""
        if self.size > 1:
            with lost_peers_as_world_errors("waiting for the others"):
                self.finish(dist.all_reduce(torch.zeros(1), group=self.control_group, async_op=True))

    def finish(self, work: dist.Work | None, *, on_device: bool = False) -> None:
        """Wait until an exchange is done; one on a device is only queued, and never waited for here."""
        if work is None:
            return
        if on_device:
            work.wait()
            return
        while True:
            try:
                work.wait(_LOOK)
                return
            except RuntimeError:
                if work.is_completed():
                    raise
                if self.lost:
                    self.stuck = True
                    raise WorldError(
                        "a worker was lost and the exchange with it did not end. The world must be formed anew."
                    ) from None

    def _land(self, flights: Sequence[Flight]) -> None:
        """Wait for what is under way and copy it back to where it came from."""
        for bucket, flat, work in flights:
            self.finish(work, on_device=flat.device.type != "cpu")
            if bucket:
                for tensor, piece in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
                    tensor.copy_(piece.view_as(tensor))

    def _group_of(self, tensor: torch.Tensor) -> dist.ProcessGroup:
        return self.control_group if tensor.device.type == "cpu" else self.group


Bucket = list[torch.Tensor]
Flight = tuple[Bucket, torch.Tensor, "dist.Work | None"]


def _flattened(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[Bucket, torch.Tensor]]:
    """Each bucket with the one-dimensional tensor that travels for it: a view of it where possible, else a copy."""
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
        held = 0
        for tensor in kind:
            size = tensor.numel() * tensor.element_size()
            if bucket and held + size > BUCKET_BYTES:
                yield bucket
                bucket, held = [], 0
            bucket.append(tensor)
            held += size
        yield bucket


def _check_source(source: int, size: int) -> None:
    if not 0 <= source < size:
        raise ConfigError(f"source rank is {source}, expected 0 to {size - 1}: the ranks of this world.")
