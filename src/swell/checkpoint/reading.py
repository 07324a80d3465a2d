"""A checkpoint on the disk: its manifest and checksums alone say whether it is complete; reading it runs no code."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from swell.checkpoint.disk import checksum_file
from swell.checkpoint.encoding import decode, refuse_shards
from swell.checkpoint.folder_names import number_of
from swell.checkpoint.manifest import FILE_NAME, Manifest, PartEntry, from_json
from swell.core.regular_files import open_regular, read_regular
from swell.errors import CheckpointError, DamagedCheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint with a valid manifest and files of the right lengths; ``verify`` checks every byte."""

    path: Path
    number: int  # grows with every save of the run, so the newest is the last one saved, whatever its samples
    manifest: Manifest

    @property
    def samples(self) -> int:
        """Samples committed when it was saved."""
        return self.manifest.samples

    @property
    def step(self) -> int:
        """Optimizer steps committed when it was saved."""
        return self.manifest.step

    @property
    def name(self) -> str | None:
        """The name it was saved under, or None."""
        return self.manifest.name

    @property
    def has_shards(self) -> bool:
        """Whether tensors were saved in shards, each by its own replica."""
        return any(part.kind == "dcp" for part in self.manifest.parts)


def inspect(path: Path | str) -> Checkpoint:
    """The checkpoint in a folder, after a quick check: its manifest, and the length of every file."""
    path = Path(path)
    with _explained_errors(path):
        manifest = from_json(read_regular(path / FILE_NAME, follow=True), where=str(path))
        for entry in manifest.files:
            length = _length(path / entry.path)
            if length != entry.bytes:
                raise _damage(path, f"{entry.path} has {length} bytes instead of {entry.bytes}")
    return Checkpoint(path=path, number=number_of(path.name) or 0, manifest=manifest)


def _length(path: Path) -> int:
    """The length of a regular file; a pipe or a device could not be read to its end."""
    descriptor = open_regular(path, os.O_RDONLY, follow=True)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def verify(checkpoint: Checkpoint, *, first: int = 0, every: int = 1) -> None:
    """Read every file and compare its checksum; raises ``DamagedCheckpointError`` at the first that differs.

    Replicas can share the work: each then reads the files ``[first::every]`` only.
    """
    with _explained_errors(checkpoint.path):
        for entry in checkpoint.manifest.files[first::every]:
            if checksum_file(checkpoint.path, entry.path) != entry:
                raise _damage(checkpoint.path, f"{entry.path} does not have the content that was written")


def read_parts(
    checkpoint: Checkpoint,
    *,
    map_location: Any,
    names: Collection[str] | None = None,
    resolve: Callable[[Any], Any] = refuse_shards,
) -> dict[str, Any]:
    """The state of each part (or of the named ones), tensors at ``map_location``; checksums are not checked.

    ``resolve`` gives the tensor of a key that was saved in shards.
    """
    parts = {part.name: part for part in checkpoint.manifest.parts if part.kind == "torch"}
    missing = sorted(set(names or ()) - set(parts))
    if missing:
        raise CheckpointError(
            f"checkpoint {checkpoint.path} has no part {missing[0]!r}; expected one of {', '.join(sorted(parts))}. Ask "
            f"for one of these: nothing was registered under the other name when it was saved."
        )
    return {
        name: decode(_read(checkpoint, parts[name], map_location), resolve=resolve)
        for name in (parts if names is None else names)
    }


def _read(checkpoint: Checkpoint, part: PartEntry, map_location: Any) -> Any:
    file = checkpoint.path / part.files[0].path
    with _explained_errors(checkpoint.path):
        try:
            return torch.load(file, map_location=map_location, weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{file} was refused because reading it would run code ({_reason(error)}); expected plain values and "
                f"tensors, as swell writes them. Nothing in it was run. Do not trust it."
            ) from error
        except (OSError, CheckpointError):
            raise
        except Exception as error:  # whatever torch raises on bytes that it did not write
            raise _damage(checkpoint.path, f"{part.files[0].path} cannot be read ({error})") from error


def _reason(error: Exception) -> str:
    """What torch refused, without its advice to load the file unsafely."""
    lines = [line for line in str(error).splitlines() if "WeightsUnpickler error" in line]
    return lines[0].partition("error: ")[2].partition(". Please use")[0] if lines else "not a file of torch.save"


@contextmanager
def _explained_errors(path: Path) -> Iterator[None]:
    """Turns an error of the file system into what it means for the checkpoint that is being read."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            raise CheckpointError(
                f"checkpoint {path} cannot be read: permission denied for {error.filename}. Make it readable for this "
                f"user; starting without it would repeat work."
            ) from error
        gone = error.errno in (errno.ENOENT, errno.ENOTDIR) and error.filename
        raise _damage(path, f"{Path(error.filename).name} is missing" if gone else str(error)) from error


def _damage(path: Path, reason: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"checkpoint {path} is damaged: {reason}. An older one may be complete.")
