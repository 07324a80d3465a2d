"""What a checkpoint says about itself: the run's position, the files that belong to it, their lengths and checksums."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from swell.errors import CheckpointError, DamagedCheckpointError

# Raised when an older swell could not read what this one writes. In every format the manifest is one JSON object with a
# "format" and a "sha256" over the rest, so that an older swell can distinguish a newer checkpoint from a damaged one.
FORMAT = 1
FILE_NAME = "manifest.json"

_LARGEST = 1 << 63
_FORMER_FIELDS = ("model", "meta")  # written by earlier versions of this format, and ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file: its path below the checkpoint, its length in bytes, the SHA-256 of its content."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEntry:
    """One named part of the state and its files; ``kind`` says how to read them."""

    name: str
    kind: str  # "torch": one file of torch.save; "dcp": the shards of all parts, by torch.distributed.checkpoint
    files: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The last file written into a checkpoint; a checkpoint without it, or that differs from it, does not count."""

    run_id: str
    samples: int  # committed by the run when it was saved
    step: int
    parts: tuple[PartEntry, ...]
    name: str | None = None  # a checkpoint with a name is kept, however old
    world_size: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)  # of the libraries that wrote it
    created: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    format: int = FORMAT

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Every file of every part."""
        return tuple(entry for part in self.parts for entry in part.files)

    @property
    def num_bytes(self) -> int:
        """Length of all files together."""
        return sum(entry.bytes for entry in self.files)


def to_json(manifest: Manifest) -> str:
    """The manifest as JSON, with a checksum over itself."""
    return sealed(asdict(manifest))


def sealed(fields: Mapping[str, Any]) -> str:
    """The fields as JSON, with a checksum over themselves."""
    return json.dumps({"sha256": _checksum(fields), **fields}, indent=1)


def from_json(text: str | bytes, *, where: str) -> Manifest:
    """The manifest that ``to_json`` was given; ``where`` names its checkpoint in errors."""
    try:
        fields = json.loads(text, parse_constant=_refuse_constant)
        if fields.pop("sha256") != _checksum(fields):
            raise ValueError("its checksum does not match")
        _check_count("format", fields["format"])
        if fields["format"] > FORMAT:
            raise CheckpointError(
                f"checkpoint {where} is of format {fields['format']}; expected format {FORMAT} or older, which this "
                f"version of swell reads. Upgrade swell, or choose another run folder. Nothing was changed."
            )
        parts = tuple(_part(part) for part in fields.pop("parts"))
        _check(fields)
        return Manifest(parts=parts, **{key: value for key, value in fields.items() if key not in _FORMER_FIELDS})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedCheckpointError(
            f"checkpoint {where} is damaged: its {FILE_NAME} cannot be read ({error}). An older one may be complete."
        ) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of a manifest")


def _check(fields: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` where a value is of a kind that swell does not write, checksum or not."""
    for name in ("samples", "step", "world_size"):
        if name in fields:
            _check_count(name, fields[name])
    for name in ("run_id", "created", "name"):
        text = fields.get(name)
        if not (isinstance(text, str) or (text is None and name == "name") or name not in fields):
            raise ValueError(f"{name} is {repr(text)[:40]}, no text")


def _check_count(name: str, value: Any) -> None:
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise ValueError(f"{name} is {repr(value)[:40]}, no count")


def _part(fields: Mapping[str, Any]) -> PartEntry:
    files = tuple(_entry(entry) for entry in fields["files"])
    if fields["kind"] == "torch" and len(files) != 1:
        raise ValueError(f"part {fields['name']!r} has {len(files)} files instead of one")
    return PartEntry(name=str(fields["name"]), kind=str(fields["kind"]), files=files)


def _entry(fields: Mapping[str, Any]) -> FileEntry:
    _check_count("the length of a file", fields["bytes"])
    entry = FileEntry(path=str(fields["path"]), bytes=fields["bytes"], sha256=str(fields["sha256"]))
    path = PurePosixPath(entry.path)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{entry.path!r} lies outside the checkpoint")
    if "\0" in entry.path:
        raise ValueError(f"{entry.path!r} is the path of no file")
    return entry


def _checksum(fields: Mapping[str, Any]) -> str:
    """Of the content, not of the text, so that a manifest that was formatted again still counts."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
