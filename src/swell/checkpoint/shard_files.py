"""Files of sharded tensors: written by torch.distributed.checkpoint, with an index that is no pickle."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.tensor import DTensor

from swell.checkpoint.disk import disk_error
from swell.checkpoint.reading import Checkpoint, read_parts
from swell.checkpoint.tensor_memory import dtype_name, named_dtype
from swell.errors import CheckpointError, WorldError

SHARDS = "shards"  # the part, and the folder of its files
INDEX = "index.json"  # which file holds which shard; torch's own .metadata says the same, but is a pickle

Tensors = Mapping[str, metadata.TensorStorageMetadata]


def write_shards(shards: Mapping[str, DTensor], folder: Path, group: dist.ProcessGroup | None) -> None:
    """Write this replica's shards and, on the first replica, their index; every replica of the group calls it."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        dcp.save(dict(shards), storage_writer=_Writer(folder), planner=planner, process_group=group)
    except CheckpointException as failure:
        rank, (error, _) = next(iter(failure.failures.items()))
        if isinstance(error, OSError):
            raise disk_error(error, doing=f"saving the shards of replica {rank}", folder=folder) from error
        raise CheckpointError(
            f"saving the shards of replica {rank} failed: {type(error).__name__}: {error}. Older checkpoints are "
            f"untouched; training can go on, and the next save will try again."
        ) from error
    except RuntimeError as error:
        raise WorldError(f"a replica was lost while saving a checkpoint: {error}. Form the world again.") from error


def read_whole(checkpoint: Checkpoint, part: str, *, below: str) -> Any:
    """A part of a sharded checkpoint with its tensors put together in host memory, in one process.

    Only the tensors whose place begins with ``below`` are read; the others are left empty. Checksums are not checked.
    """
    reader = ShardReader(checkpoint)
    entries = reader.tensors()
    targets = {key: torch.empty(entry.size, dtype=entry.properties.dtype) for key, entry in entries.items()}
    state = read_parts(checkpoint, map_location="cpu", names=[part], resolve=targets.__getitem__)[part]
    reader.read_into({key: target for key, target in targets.items() if key.startswith(below)}, None)
    return state


class _Writer(dcp.FileSystemWriter):
    """Writes the index as JSON too. It does not sync the files: it would do so before it flushes them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / SHARDS, sync_files=False)

    def finish(self, metadata: metadata.Metadata, results: Any) -> None:
        super().finish(metadata, results)
        tensors = {
            key: {
                "dtype": dtype_name(entry.properties.dtype),
                "shape": list(entry.size),
                "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in entry.chunks],
            }
            for key, entry in cast(Tensors, metadata.state_dict_metadata).items()
        }
        shards = [shard for replica_results in results for shard in replica_results]
        places = [
            [index.fqn, list(index.offset), index.index, place.relative_path, place.offset, place.length]
            for index, place in ((shard.index, shard.storage_data) for shard in shards)
        ]
        (Path(self.path) / INDEX).write_text(json.dumps({"tensors": tensors, "places": places}))


class ShardReader(dcp.FileSystemReader):
    """Reads the index of the shards from JSON, and opens only files that the manifest names."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint.path / SHARDS)
        self._checkpoint = checkpoint

    def tensors(self) -> Tensors:
        """Size, dtype and shards of each sharded tensor, by its key."""
        return cast(Tensors, self.read_metadata().state_dict_metadata)

    def read_into(self, targets: Mapping[str, torch.Tensor], group: dist.ProcessGroup | None) -> None:
        """Fill the tensors; every replica of the group calls it, or without a group this process alone."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                dcp.load(
                    dict(targets),
                    storage_reader=self,
                    planner=_Planner(),
                    process_group=group,
                    no_dist=group is None,
                )
        except CheckpointException as failure:
            rank, (error, _) = next(iter(failure.failures.items()))
            raise CheckpointError(
                f"checkpoint {self._checkpoint.path} does not fit: {error} (on replica {rank}). Build the model and "
                f"the optimizer that were saved."
            ) from error

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        files = {entry.path for entry in self._checkpoint.manifest.files}
        try:
            index = json.loads((Path(self.path) / INDEX).read_text())
            tensors: dict[str, Any] = {
                key: metadata.TensorStorageMetadata(
                    properties=metadata.TensorProperties(dtype=named_dtype(entry["dtype"])),
                    size=torch.Size(entry["shape"]),
                    chunks=[metadata.ChunkStorageMetadata(*map(torch.Size, chunk)) for chunk in entry["chunks"]],
                )
                for key, entry in index["tensors"].items()
            }
            places = {}
            for key, offset, number, path, start, length in index["places"]:
                if f"{SHARDS}/{path}" not in files:
                    raise ValueError(f"{path!r} is no file of the checkpoint")
                places[metadata.MetadataIndex(key, offset, number)] = filesystem._StorageInfo(path, start, length)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"the index of the shards in {self.path} cannot be read: {error}; expected the file that swell writes. "
                f"Do not trust the checkpoint."
            ) from error
        meta = metadata.StorageMeta(load_id=self.load_id)
        return metadata.Metadata(tensors, storage_data=places, storage_meta=meta)


class _Planner(DefaultLoadPlanner):
    """Reads tensors only, because anything else in a file of shards would be unpickled."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: Any, value: Any) -> None:
        raise CheckpointError(
            f"{read_item.dest_index.fqn} is no tensor; expected tensors only, as swell writes them. Do not trust the "
            f"checkpoint."
        )
