"""The supported releases are the same in the extras, in the checks and in the documentation; no library is needed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from swell.integrations.accelerate import releases as accelerate
from swell.integrations.transformers import releases as transformers

ROOT = Path(__file__).parents[2]
RELEASES: dict[str, Any] = {"transformers": transformers, "accelerate": accelerate}


def asked_for(library: str) -> set[str]:
    """What the extras ask for of a library."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return {line for lines in extras.values() for line in lines if re.match(rf"{library}\b", line)}


def row_of(library: str) -> list[str]:
    """What the documentation says: the supported range, the oldest and the newest tested."""
    text = (ROOT / "docs" / "limits.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith(f"| {library} |")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


@pytest.mark.parametrize("library", RELEASES)
def test_the_range_is_the_same_everywhere(library: str) -> None:
    (oldest, below), tested = (RELEASES[library].OLDEST, RELEASES[library].BELOW), RELEASES[library].TESTED
    first = ".".join(map(str, oldest))
    assert asked_for(library) == {f"{library}>={first},<{below[0]}"}
    supported, oldest_tested, newest_tested = row_of(library)
    assert supported == f"{first} or newer, below {below[0]}"
    assert oldest_tested.startswith(f"{first}.") and newest_tested == tested


def test_the_range_of_lightning_is_that_of_the_tried_releases() -> None:
    source = (ROOT / "src" / "swell" / "integrations" / "lightning" / "loops.py").read_text()
    (tried,) = re.findall(r'^TRIED = \("([\d.]+)",\)', source, re.MULTILINE)
    major, minor = map(int, tried.split("."))
    assert asked_for("lightning") == {f"lightning>={tried},<{major}.{minor + 1}"}
    supported, *tested = row_of("lightning")
    assert supported == tried and all(release.startswith(f"{tried}.") for release in tested)
