"""A checkpoint on the disk: told whole from torn by its manifest and checksums alone, read without running code."""

from __future__ import annotations

import errno
import pickle
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from swell.checkpoint.disk import checksum_file
from swell.checkpoint.encoding import decode, no_shards
from swell.checkpoint.fingerprint import differences, fingerprint
from swell.checkpoint.manifest import FILE_NAME, Manifest, Part, from_json
from swell.errors import CheckpointError, DamagedCheckpointError

_FOLDER = re.compile(r"(\d{6,})-samples(\d+)-step(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose manifest is whole and whose files are as long as it says; ``verify`` looks at every byte."""

    path: Path
    number: int  # rises with every save of the run, so the newest is the last one saved, wherever its samples stand
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
        """The name it was given, or None."""
        return self.manifest.name


def folder_name(*, number: int, samples: int, step: int) -> str:
    """The name of a checkpoint's folder; names sort as the checkpoints were saved.

    >>> folder_name(number=7, samples=12800, step=100)
    '000007-samples12800-step100'
    """
    return f"{number:06d}-samples{samples}-step{step}"


def numbered_folders(root: Path) -> list[tuple[int, Path]]:
    """Every folder below ``root`` that is named as a checkpoint, whole or not, oldest first."""
    try:
        names = [(match, child) for child in root.iterdir() if (match := _FOLDER.fullmatch(child.name))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            f"the checkpoints in {root} cannot be listed: {error.strerror}. Make the folder readable for this user, or "
            f"choose another run folder."
        ) from error
    return sorted((int(match[1]), child) for match, child in names)


def inspect(path: Path | str) -> Checkpoint:
    """The checkpoint in a folder, by a quick look: its manifest, and the length of every file."""
    path = Path(path)
    with _reading(path):
        manifest = from_json((path / FILE_NAME).read_bytes(), where=str(path))
        for entry in manifest.files:
            length = (path / entry.path).stat().st_size
            if length != entry.bytes:
                raise _damaged(path, f"{entry.path} has {length} bytes instead of {entry.bytes}")
    match = _FOLDER.fullmatch(path.name)
    return Checkpoint(path=path, number=int(match[1]) if match else 0, manifest=manifest)


def verify(found: Checkpoint, *, first: int = 0, every: int = 1) -> None:
    """Read every file and compare its checksum; raises ``DamagedCheckpointError`` at the first that differs.

    Replicas can share the work: each then reads the files ``[first::every]`` only.
    """
    with _reading(found.path):
        for entry in found.manifest.files[first::every]:
            if checksum_file(found.path, entry.path) != entry:
                raise _damaged(found.path, f"{entry.path} does not have the content that was written")


def check_model(found: Checkpoint, model: Any) -> None:
    """Raise ``CheckpointError`` unless the checkpoint's model has tensors of the same names, shapes and types."""
    differ = differences(found.manifest.model, fingerprint(model))
    if differ:
        raise CheckpointError(
            f"checkpoint {found.path} is of another model: {differ}. Build the model it was saved from, or start in "
            f"another run folder."
        )


def read_parts(
    found: Checkpoint,
    *,
    map_location: Any,
    parts: Collection[str] | None = None,
    shard: Callable[[str], Any] = no_shards,
) -> dict[str, Any]:
    """The state of each part (or of those named), tensors brought to ``map_location``; checksums are not looked at."""
    held = {part.name: part for part in found.manifest.parts if part.kind == "torch"}
    missing = sorted(set(parts or ()) - set(held))
    if missing:
        raise CheckpointError(
            f"checkpoint {found.path} has no part {missing[0]!r}; it has {', '.join(sorted(held))}. It was saved by a "
            f"job that had nothing registered under that name."
        )
    wanted = held if parts is None else parts
    return {name: decode(_read(found, held[name], map_location), shard=shard) for name in wanted}


def _read(found: Checkpoint, part: Part, map_location: Any) -> Any:
    file = found.path / part.files[0].path
    with _reading(found.path):
        try:
            return torch.load(file, map_location=map_location, weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{file} was refused: it holds more than plain values and tensors, and reading it would run code "
                f"({_reason(error)}). swell writes no such file; nothing in it was run. Do not trust it."
            ) from error
        except (OSError, CheckpointError):
            raise
        except Exception as error:  # whatever torch meets in bytes that are not its own
            raise _damaged(found.path, f"{part.files[0].path} cannot be read ({error})") from error


def _reason(error: Exception) -> str:
    """What torch refused, without its advice to load the file unsafely."""
    lines = [line for line in str(error).splitlines() if "WeightsUnpickler error" in line]
    return lines[0].partition("error: ")[2].partition(". Please use")[0] if lines else "not a file of torch.save"


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns what the file system says while a checkpoint is read into what it means for the checkpoint."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            raise CheckpointError(
                f"checkpoint {path} cannot be read: permission denied for {error.filename}. Make it readable for this "
                f"user; starting without it would repeat work."
            ) from error
        gone = error.errno in (errno.ENOENT, errno.ENOTDIR) and error.filename
        raise _damaged(path, f"{Path(error.filename).name} is missing" if gone else str(error)) from error


def _damaged(path: Path, what: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"checkpoint {path} is damaged: {what}. An older one may be whole.")
