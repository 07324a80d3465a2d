"""What a command of ``swell`` consists of."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Command:
    """One word after ``swell``: how it is described, which options it takes, what it does.

    ``run`` returns the exit status. It may raise any ``SwellError``; the user sees its message on one line.
    Whatever is slow to import is imported inside ``run``, so that ``swell --help`` stays quick.
    """

    summary: str  # one line, in the list of commands
    description: str  # a paragraph or two, in the command's own help
    example: str  # a command line to copy
    options: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
