"""Checkpoints of sharded state (FSDP2, DTensor): each replica writes its shards, any number of replicas reads them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.tensor import DTensor, distribute_tensor

from swell.checkpoint.agreement import Together
from swell.checkpoint.disk import checksum_file, explained, sync_file
from swell.checkpoint.encoding import encode, shard_mark
from swell.checkpoint.manifest import FileEntry
from swell.checkpoint.reading import Checkpoint, check_model, inspect, read_parts, verify
from swell.checkpoint.snapshot import MODEL, HostBuffers, Snapshot, take
from swell.checkpoint.store import Store
from swell.checkpoint.writing import Draft
from swell.core.protocols import Collective
from swell.errors import CheckpointError, WorldError

SHARDS = "shards"  # the part, and the folder of its files
Tensors = Mapping[str, metadata.TensorStorageMetadata]
INDEX = "index.json"  # which file holds which shard; torch's own .metadata says the same, but is a pickle


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedSnapshot:
    """The sharded tensors of a state by key, and the rest of it with marks in their places."""

    shards: Mapping[str, DTensor]
    rest: Snapshot


class ShardedStore:
    """The checkpoints of a run whose tensors are spread over replicas; every replica calls every method.

    Sharded tensors go through ``torch.distributed.checkpoint``, everything else through ``store``, in one folder that
    the first replica publishes whole; the run's folder is on a disk that all of them see. Hyper-parameters of
    optimizers are in what goes through ``store``, so none is lost. Nothing is unpickled that could run code.

    ``collective`` is training's own, used on the calling thread. ``background`` is a collective over ``group``, a gloo
    group of the same ranks that is used for nothing else: a save in the background would otherwise meet training's
    messages. In one process without torch.distributed, ``group`` is None. Wait for the save under way and call
    ``collective.barrier()`` before the groups are destroyed.
    """

    def __init__(
        self, store: Store, *, collective: Collective, background: Collective, group: dist.ProcessGroup | None
    ) -> None:
        self.store = store
        self._group = group
        self._collective = collective
        self._calling = Together(collective, store.root)
        self._saving = Together(background, store.root)

    def save(
        self,
        state: Mapping[str, Any] | ShardedSnapshot,
        *,
        samples: int,
        step: int,
        name: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Save a state whose parts may hold DTensors anywhere; what is not sharded is taken from the first replica.

        Fails on every replica when it fails on one, with ``CheckpointError``; a lost replica raises ``WorldError``.
        """
        first = self._saving.rank == 0
        snapshot = state if isinstance(state, ShardedSnapshot) else _split(state, take, first=first)
        snapshot.rest.settle()
        about = self.store.about(snapshot.rest, samples, step, name, self._saving.size, meta)
        with ExitStack() as stack:
            drafts: list[Draft] = []  # one, on the first replica

            def begin() -> str:
                drafts.append(stack.enter_context(self.store.draft()))
                return str(drafts[0].folder)

            folder = Path(self._saving.first_does(begin))
            if snapshot.shards:
                self._write_shards(snapshot.shards, folder)
            files = self._saving.each_does(lambda: [asdict(entry) for entry in self._written(folder)])

            def publish() -> str:
                entries = [FileEntry(**entry) for of_one in files for entry in of_one]
                if entries:
                    drafts[0].add_files(SHARDS, kind="dcp", files=entries)
                for part, tree in snapshot.rest.parts.items():
                    drafts[0].add_state(part, tree)
                return str(drafts[0].publish(**about).path)

            path = self._saving.first_does(publish)
        if first:
            self.store.prune()
        return inspect(path)

    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint as the first replica finds it; the same on every replica."""

        def find() -> str:
            found = self.store.newest()
            return "" if found is None else str(found.path)

        path = self._calling.first_does(find)
        return inspect(path) if path else None

    def load(
        self,
        found: Checkpoint,
        into: Mapping[str, Any],
        *,
        optimizers: Mapping[str, torch.optim.Optimizer] | None = None,
        of_another_run: bool = False,
    ) -> dict[str, Any]:
        """The saved state, laid out over the replicas there are now; every byte is checked first.

        ``into`` is the state at hand, part by part, such as ``{"model": model.state_dict(), "optimizer":
        optimizer.state_dict()}``: its sharded tensors say how each is to be laid out, and are overwritten. An optimizer
        that has not stepped yet has none; name it in ``optimizers`` under its part, and its tensors are laid out like
        its parameters. Hand the result to ``load_state_dict``. A state saved whole can be loaded into a sharded one,
        and the other way round. The part "model" must fit.
        """

        def check() -> None:
            if self._calling.rank == 0:
                self.store.check_run(found, of_another_run=of_another_run)
            if MODEL in into:
                check_model(found, into[MODEL])
            verify(found, first=self._calling.rank, every=self._calling.size)

        self._calling.each_does(check)
        layout = _Layout(into, optimizers or {})
        shards = self._read_shards(found, layout) if any(part.kind == "dcp" for part in found.manifest.parts) else {}
        state = read_parts(found, map_location="cpu", shard=shards.__getitem__)
        return {part: layout.fitted(value, part) for part, value in state.items()}

    def stager(self) -> ShardedBuffers:
        """Buffers for saving in the background."""
        return ShardedBuffers(first=self._saving.rank == 0)

    def agreed(self, idle: bool) -> bool:
        """Whether every replica is idle; the same answer on all."""
        return all(row[0] for row in self._collective.gather_numbers([float(idle)]))

    def _write_shards(self, shards: Mapping[str, DTensor], folder: Path) -> None:
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        try:
            dcp.save(dict(shards), storage_writer=_Writer(folder), planner=planner, process_group=self._group)
        except CheckpointException as failed:
            rank, (error, _) = next(iter(failed.failures.items()))
            if isinstance(error, OSError):
                raise explained(error, doing=f"saving the shards of replica {rank}", folder=folder) from error
            raise CheckpointError(
                f"saving the shards of replica {rank} failed: {type(error).__name__}: {error}. Older checkpoints are "
                f"untouched; training can go on, and the next save will try again."
            ) from error
        except RuntimeError as error:
            raise WorldError(f"a replica was lost while saving a checkpoint: {error}. Form the world anew.") from error

    def _written(self, folder: Path) -> list[FileEntry]:
        """This replica's files, once they are on the disk."""
        mine = sorted(folder.glob(f"{SHARDS}/__{self._saving.rank}_*"))
        if self._saving.rank == 0:
            mine += [path for path in (folder / SHARDS / INDEX, folder / SHARDS / ".metadata") if path.exists()]
        for path in mine:
            sync_file(path)
        return [checksum_file(folder, f"{SHARDS}/{path.name}") for path in mine]

    def _read_shards(self, found: Checkpoint, layout: _Layout) -> dict[str, Any]:
        reader = _Reader(found)
        targets: dict[str, Any] = {}

        def prepare() -> None:
            for key, saved in reader.tensors().items():
                targets[key] = layout.target(key, saved)

        self._calling.each_does(prepare)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process reads by itself
                dcp.load(targets, storage_reader=reader, planner=_Planner(), process_group=self._group)
        except CheckpointException as failed:
            rank, (error, _) = next(iter(failed.failures.items()))
            raise CheckpointError(
                f"checkpoint {found.path} does not fit: {error} (on replica {rank}). Build the model and the optimizer "
                f"as they were saved."
            ) from error
        return targets


class ShardedBuffers:
    """Host memory for snapshots of sharded states, kept from one to the next."""

    def __init__(self, *, first: bool) -> None:
        self._first = first
        self._whole, self._local = HostBuffers(), HostBuffers()

    def take(self, state: Mapping[str, Any]) -> ShardedSnapshot:
        """Copy the state; the snapshot before must not be needed any more."""
        live = _split(state, self._whole.take, first=self._first)
        copied = self._local.take({SHARDS: [shard.to_local() for shard in live.shards.values()]})
        copies = zip(live.shards.items(), copied.parts[SHARDS], strict=True)

        def settle() -> None:
            live.rest.settle()
            copied.settle()

        return ShardedSnapshot(
            shards={key: _with_local(shard, copy) for (key, shard), copy in copies},
            rest=replace(live.rest, settle=settle),
        )

    def room_for(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Nothing that could be done ahead: the first snapshot gets the memory."""
        return lambda: None


def _with_local(shard: DTensor, local: torch.Tensor) -> DTensor:
    """The same piece of the same tensor, in other memory, which need not be the mesh's device."""
    names, spec = shard.__tensor_flatten__()
    inner = {**{name: getattr(shard, name) for name in names}, "_local_tensor": local}
    return DTensor.__tensor_unflatten__(inner, spec, shard.size(), shard.stride())


def _split(state: Mapping[str, Any], taken: Callable[..., Snapshot], *, first: bool) -> ShardedSnapshot:
    """Sharded tensors as they are, and a snapshot of the rest; only the first replica's holds the rest's tensors."""
    shards: dict[str, DTensor] = {}

    def aside(where: str, tensor: torch.Tensor) -> Any:
        if isinstance(tensor, DTensor):
            shards[where] = cast(DTensor, tensor.detach())
            return shard_mark(where)
        return None if first else "kept by the first replica"

    return ShardedSnapshot(rest=taken(state, aside=aside), shards=shards)


class _Layout:
    """How each tensor of a state is to be laid out, looked up by the name that ``encode`` gives its place."""

    def __init__(self, into: Mapping[str, Any], optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self._at_hand: dict[str, torch.Tensor] = {}
        for part, value in into.items():
            encode(value, leaf=self._at_hand.__setitem__, where=part)
        self._parameters = {
            f"{part}['state'][{number}]": parameter
            for part, optimizer in optimizers.items()
            for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"])
        }

    def like(self, where: str) -> torch.Tensor | None:
        """The tensor in this place, or the parameter that it belongs to."""
        return self._at_hand.get(where, self._parameters.get(where.rpartition("[")[0]))

    def target(self, key: str, saved: metadata.TensorStorageMetadata) -> torch.Tensor:
        """The tensor to read a sharded one into."""
        if key in self._at_hand:
            return self._at_hand[key].detach()
        parameter = self.like(key)
        if parameter is None or parameter.shape != saved.size:
            raise CheckpointError(
                f"the checkpoint holds {key}, of shape {list(saved.size)}, and nothing at hand says how to lay it out. "
                f"Name the optimizer in optimizers=, or let it step once before loading."
            )
        return torch.empty_like(parameter, dtype=saved.properties.dtype).detach()

    def fitted(self, value: Any, where: str) -> Any:
        """The value with each whole tensor cut up where the state at hand has a sharded one."""
        if isinstance(value, torch.Tensor):
            like = self.like(where)
            if isinstance(like, DTensor) and not isinstance(value, DTensor) and value.shape == like.shape:
                # No messages: every replica has the whole and keeps its own piece.
                return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
        elif type(value) in (list, tuple):
            return type(value)(self.fitted(item, f"{where}[{i}]") for i, item in enumerate(value))
        elif isinstance(value, dict):
            for key, item in value.items():
                value[key] = self.fitted(item, f"{where}[{key!r}]")
        return value


class _Writer(dcp.FileSystemWriter):
    """Writes the index of the shards as JSON too. We sync the files: this writer would, before it flushes them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / SHARDS, sync_files=False)

    def finish(self, metadata: metadata.Metadata, results: Any) -> None:
        super().finish(metadata, results)
        tensors = {
            key: {
                "dtype": str(saved.properties.dtype).removeprefix("torch."),
                "shape": list(saved.size),
                "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in saved.chunks],
            }
            for key, saved in cast(Tensors, metadata.state_dict_metadata).items()
        }
        written = [one for of_replica in results for one in of_replica]
        places = [
            [one.index.fqn, list(one.index.offset), one.index.index, place.relative_path, place.offset, place.length]
            for one, place in ((one, one.storage_data) for one in written)
        ]
        (Path(self.path) / INDEX).write_text(json.dumps({"tensors": tensors, "places": places}))


class _Reader(dcp.FileSystemReader):
    """Takes the index of the shards from JSON, and opens only files that the manifest names."""

    def __init__(self, found: Checkpoint) -> None:
        super().__init__(found.path / SHARDS)
        self._files = {entry.path for entry in found.manifest.files}

    def tensors(self) -> Tensors:
        """What is known of each sharded tensor, by its key."""
        return cast(Tensors, self.read_metadata().state_dict_metadata)

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        try:
            index = json.loads((Path(self.path) / INDEX).read_text())
            tensors: dict[str, Any] = {
                key: metadata.TensorStorageMetadata(
                    properties=metadata.TensorProperties(dtype=_dtype(saved["dtype"])),
                    size=torch.Size(saved["shape"]),
                    chunks=[metadata.ChunkStorageMetadata(*map(torch.Size, chunk)) for chunk in saved["chunks"]],
                )
                for key, saved in index["tensors"].items()
            }
            places = {}
            for key, offset, number, path, start, length in index["places"]:
                if f"{SHARDS}/{path}" not in self._files:
                    raise ValueError(f"{path!r} is no file of the checkpoint")
                places[metadata.MetadataIndex(key, offset, number)] = filesystem._StorageInfo(path, start, length)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"the index of the shards in {self.path} cannot be read: {error}. swell writes no such file."
            ) from error
        meta = metadata.StorageMeta(load_id=self.load_id)
        return metadata.Metadata(tensors, storage_data=places, storage_meta=meta)


class _Planner(DefaultLoadPlanner):
    """Reads tensors only: whatever else a file of shards may hold would be unpickled."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: Any, value: Any) -> None:
        raise CheckpointError(f"{read_item.dest_index.fqn} is not a tensor; swell writes only tensors as shards.")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {name!r}")
    return dtype
