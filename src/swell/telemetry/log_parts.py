"""The files of one log: the newest, which is written to, and older ones, which are complete and compressed."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path
from typing import IO

from swell.core.regular_files import open_regular

PART_BYTES = 4_000_000  # at which the newest file is put away; about four hours at ten steps a second


def older_parts(path: Path) -> list[Path]:
    """The files that were put away before ``path``, oldest first: ``events-0001.jsonl.gz`` and so on.

    A part that is there both plain and compressed was interrupted while it was compressed; the plain one counts.
    """
    pattern = re.compile(rf"{re.escape(path.stem)}-(\d+){re.escape(path.suffix)}(\.gz)?")
    found: dict[int, Path] = {}
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return []
    for name in names:
        match = pattern.fullmatch(name)
        if match and (match[2] is None or int(match[1]) not in found):
            found[int(match[1])] = path.parent / name
    return [found[number] for number in sorted(found)]


def put_away(path: Path) -> int:
    """Rename the newest file and compress it; returns how many parts there are now.

    A reader that has the file open keeps it. Killed in between, nothing is lost: the plain file is read instead.
    """
    parts = older_parts(path)
    number = 1 + max((part_number(part) for part in parts), default=0)
    plain = path.with_name(f"{path.stem}-{number:04d}{path.suffix}")
    os.rename(path, plain)
    aside, packed = plain.with_name(f".{plain.name}.new"), plain.with_name(f"{plain.name}.gz")
    try:
        with gzip.open(aside, "wb", compresslevel=6) as file:
            file.write(plain.read_bytes())
        os.replace(aside, packed)
        plain.unlink()
    except OSError:  # a full disk: the plain file is as good
        aside.unlink(missing_ok=True)
    return len(parts) + 1


def part_number(part: Path) -> int:
    """The number in a part's name."""
    return int(part.name.partition(".")[0].rpartition("-")[2])


def open_log(path: Path, *, follow: bool = True) -> IO[bytes]:
    """A file of a log for reading, unpacked if it was put away; what is no regular file is an ``OSError``."""
    descriptor = open_regular(path, os.O_RDONLY, follow=follow)
    if path.suffix != ".gz":
        return open(descriptor, "rb")
    os.close(descriptor)
    return gzip.open(path, "rb")  # type: ignore[return-value]
