"""How the folder of a checkpoint is named: by a number that grows with every save, its samples and its step."""

from __future__ import annotations

import re
from pathlib import Path

from swell.errors import CheckpointError

FOLDER = "checkpoints"  # below the run's folder
_NAME = re.compile(r"(\d{6,})-samples(\d+)-step(\d+)")


def folder_name(*, number: int, samples: int, step: int) -> str:
    """The name of a checkpoint's folder; names sort in the order of saving.

    >>> folder_name(number=7, samples=12800, step=100)
    '000007-samples12800-step100'
    """
    return f"{number:06d}-samples{samples}-step{step}"


def number_of(name: str) -> int | None:
    """The number in a folder's name; None if no checkpoint is named like that.

    >>> number_of("000007-samples12800-step100"), number_of(".writing-1")
    (7, None)
    """
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def numbered_folders(root: Path) -> list[tuple[int, Path]]:
    """Every folder below ``root`` that is named as a checkpoint, complete or not, oldest first."""
    try:
        found = [(number_of(child.name), child) for child in root.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            f"the checkpoints in {root} cannot be listed: {error.strerror}. Make the folder readable for this user, or "
            f"choose another run folder."
        ) from error
    return sorted((number, child) for number, child in found if number is not None)
