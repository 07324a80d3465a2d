"""Checkpoints of sharded state (FSDP2, DTensor): each replica writes its shards, any number of replicas reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor, distribute_tensor

from swell.checkpoint.agreement import Agreement
from swell.checkpoint.disk import checksum_file, sync_file
from swell.checkpoint.encoding import encode, reference
from swell.checkpoint.manifest import FileEntry
from swell.checkpoint.reading import Checkpoint, inspect, read_parts, verify
from swell.checkpoint.shard_files import INDEX, SHARDS, ShardReader, write_shards
from swell.checkpoint.snapshot import HostBuffers, Snapshot, Substitute, take
from swell.checkpoint.store import Store
from swell.checkpoint.writing import Draft
from swell.core.protocols import Collective
from swell.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedSnapshot:
    """The sharded tensors of a state by key, and the rest of it with references in their places."""

    shards: Mapping[str, DTensor]
    rest: Snapshot


class ShardedStore:
    """The checkpoints of a run whose tensors are spread over replicas; every replica calls every method.

    Sharded tensors go through ``torch.distributed.checkpoint``, everything else (also the hyper-parameters of
    optimizers) through ``store``, into one folder that the first replica publishes. The run's folder is on a disk that
    all replicas share. Loading runs no code from the files.

    ``collective`` is training's own, used on the calling thread. ``background`` is a collective over ``group``, a gloo
    group of the same ranks that is used for nothing else, because a save in the background would otherwise mix with
    training's messages. In one process without torch.distributed, ``group`` is None. Before the groups are destroyed,
    wait for the save in the background and call ``collective.barrier()``.
    """

    def __init__(
        self, store: Store, *, collective: Collective, background: Collective, group: dist.ProcessGroup | None
    ) -> None:
        self.store = store
        self._group = group
        self._collective = collective
        self._foreground = Agreement(collective, store.root)
        self._background = Agreement(background, store.root)

    def save(
        self,
        state: Mapping[str, Any] | ShardedSnapshot,
        *,
        samples: int,
        step: int,
        name: str | None = None,
    ) -> Checkpoint:
        """Save a state whose parts may hold DTensors anywhere; the first replica's is saved where it is not sharded.

        If one replica fails, all of them raise ``CheckpointError``; a lost replica raises ``WorldError``.
        """
        agreement, first = self._background, self._background.rank == 0
        snapshot = state if isinstance(state, ShardedSnapshot) else _split(state, take, first=first)
        snapshot.rest.settle()
        fields = self.store.manifest_fields(samples=samples, step=step, name=name, world_size=agreement.size)
        with ExitStack() as stack:
            drafts: list[Draft] = []  # one, on the first replica

            def begin() -> str:
                drafts.append(stack.enter_context(self.store.draft()))
                return str(drafts[0].folder)

            folder = Path(agreement.on_first(begin))
            if snapshot.shards:
                write_shards(snapshot.shards, folder, self._group)
            files = agreement.on_each(lambda: [asdict(entry) for entry in self._sync_files(folder)])

            def publish() -> str:
                entries = [FileEntry(**entry) for replica_files in files for entry in replica_files]
                if entries:
                    drafts[0].add_files(SHARDS, kind="dcp", files=entries)
                for part, tree in snapshot.rest.parts.items():
                    drafts[0].add_state(part, tree)
                return str(drafts[0].publish(**fields).path)

            path = agreement.on_first(publish)
        if first:
            self.store.prune()
        return inspect(path)

    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint that the first replica finds; the same on every replica."""

        def find() -> str:
            newest = self.store.newest()
            return "" if newest is None else str(newest.path)

        path = self._foreground.on_first(find)
        return inspect(path) if path else None

    def load(
        self,
        checkpoint: Checkpoint,
        into: Mapping[str, Any],
        *,
        optimizers: Mapping[str, torch.optim.Optimizer] | None = None,
    ) -> dict[str, Any]:
        """The saved state, laid out over the current replicas; every byte is checked first.

        ``into`` is the current state by part, such as ``{"model": model.state_dict(), "optimizer":
        optimizer.state_dict()}``: its sharded tensors give the layout, and are overwritten. An optimizer that has not
        stepped yet has no tensors: name it in ``optimizers`` under its part, and they are laid out like its parameters.
        Give the result to ``load_state_dict``. A state saved whole can be loaded into a sharded one, and a sharded one
        into a whole one.
        """
        agreement = self._foreground

        def check() -> None:
            if agreement.rank == 0:
                self.store.check_run(checkpoint)
            verify(checkpoint, first=agreement.rank, every=agreement.size)

        agreement.on_each(check)
        layout = _Layout(into, optimizers or {})
        shards = self._read_shards(checkpoint, layout) if checkpoint.has_shards else {}
        state = read_parts(checkpoint, map_location="cpu", resolve=shards.__getitem__)
        return {part: layout.fitted(value, part) for part, value in state.items()}

    def stager(self) -> ShardedBuffers:
        """Buffers for saving in the background."""
        return ShardedBuffers(first=self._background.rank == 0)

    def agreed(self, idle: bool) -> bool:
        """Whether every replica is idle; the same answer on all of them."""
        return all(row[0] for row in self._collective.gather_numbers([float(idle)]))

    def _sync_files(self, folder: Path) -> list[FileEntry]:
        """This replica's files, once they are on the disk."""
        rank = self._background.rank
        files = sorted(folder.glob(f"{SHARDS}/__{rank}_*"))
        if rank == 0:
            files += [path for path in (folder / SHARDS / INDEX, folder / SHARDS / ".metadata") if path.exists()]
        for path in files:
            sync_file(path)
        return [checksum_file(folder, f"{SHARDS}/{path.name}") for path in files]

    def _read_shards(self, checkpoint: Checkpoint, layout: _Layout) -> dict[str, torch.Tensor]:
        reader = ShardReader(checkpoint)
        targets: dict[str, torch.Tensor] = {}

        def prepare() -> None:
            for key, entry in reader.tensors().items():
                targets[key] = layout.target(key, entry)

        self._foreground.on_each(prepare)
        reader.read_into(targets, self._group)
        return targets


class ShardedBuffers:
    """Host memory for snapshots of sharded states, kept from one to the next."""

    def __init__(self, *, first: bool) -> None:
        self._first = first
        self._whole, self._local = HostBuffers(), HostBuffers()

    def take(self, state: Mapping[str, Any]) -> ShardedSnapshot:
        """Copy the state; the previous snapshot must not be needed any more."""
        split = _split(state, self._whole.take, first=self._first)
        local = self._local.take(_local_tensors(split.shards))
        copies = zip(split.shards.items(), local.parts[SHARDS], strict=True)

        def settle() -> None:
            split.rest.settle()
            local.settle()

        return ShardedSnapshot(
            shards={key: _with_local(shard, copy) for (key, shard), copy in copies},
            rest=replace(split.rest, settle=settle),
        )

    def room_for(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """A function, for any thread, that allocates and touches the memory for a state of this size."""
        shards: dict[str, DTensor] = {}
        reserve_whole = self._whole.room_for(state, substitute=_collecting(shards, first=self._first))
        reserve_local = self._local.room_for(_local_tensors(shards))

        def reserve() -> None:
            reserve_whole()
            reserve_local()

        return reserve


def _local_tensors(shards: Mapping[str, DTensor]) -> dict[str, list[torch.Tensor]]:
    return {SHARDS: [shard.to_local() for shard in shards.values()]}


def _with_local(shard: DTensor, local: torch.Tensor) -> DTensor:
    """The same shard of the same tensor in other memory, on any device."""
    names, spec = shard.__tensor_flatten__()
    inner = {**{name: getattr(shard, name) for name in names}, "_local_tensor": local}
    return DTensor.__tensor_unflatten__(inner, spec, shard.size(), shard.stride())


def _split(state: Mapping[str, Any], take_rest: Callable[..., Snapshot], *, first: bool) -> ShardedSnapshot:
    """Sharded tensors as they are, and a snapshot of the rest; only the first replica's holds the rest's tensors."""
    shards: dict[str, DTensor] = {}
    rest = take_rest(state, substitute=_collecting(shards, first=first))
    return ShardedSnapshot(shards=shards, rest=rest)


def _collecting(shards: dict[str, DTensor], *, first: bool) -> Substitute:
    """Puts sharded tensors into ``shards`` and references in their places."""

    def substitute(where: str, tensor: torch.Tensor) -> Any:
        if isinstance(tensor, DTensor):
            shards[where] = cast(DTensor, tensor.detach())
            return reference(where)
        return None if first else "kept by the first replica"

    return substitute


class _Layout:
    """How to lay out each tensor of a state, by the name that ``encode`` gives its place."""

    def __init__(self, into: Mapping[str, Any], optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        for part, value in into.items():
            encode(value, leaf=self._tensors.__setitem__, where=part)
        self._parameters = {
            f"{part}['state'][{number}]": parameter
            for part, optimizer in optimizers.items()
            for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"])
        }

    def like(self, where: str) -> torch.Tensor | None:
        """The tensor in this place, or the parameter that it belongs to."""
        return self._tensors.get(where, self._parameters.get(where.rpartition("[")[0]))

    def target(self, key: str, entry: TensorStorageMetadata) -> torch.Tensor:
        """The tensor to read a sharded one into."""
        if key in self._tensors:
            return self._tensors[key].detach()
        parameter = self.like(key)
        if parameter is None or parameter.shape != entry.size:
            raise CheckpointError(
                f"the checkpoint holds {key} of shape {list(entry.size)}; expected a tensor there, or a parameter of "
                f"this shape, that gives its layout. Build the model that was saved, and name the optimizer in "
                f"optimizers=, or let it step once before loading."
            )
        return torch.empty_like(parameter, dtype=entry.properties.dtype).detach()

    def fitted(self, value: Any, where: str) -> Any:
        """The value with each whole tensor sharded where the current state has a sharded one."""
        if isinstance(value, torch.Tensor):
            like = self.like(where)
            if isinstance(like, DTensor) and not isinstance(value, DTensor) and value.shape == like.shape:
                # No messages: every replica has the whole tensor and keeps its own shard.
                return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
        elif type(value) in (list, tuple):
            return type(value)(self.fitted(item, f"{where}[{i}]") for i, item in enumerate(value))
        elif isinstance(value, dict):
            for key, item in value.items():
                value[key] = self.fitted(item, f"{where}[{key!r}]")
        return value
