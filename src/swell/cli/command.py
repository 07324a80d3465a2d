"""The parts of a subcommand of ``swell``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Command:
    """One subcommand: its description, its options and the function that runs it.

    ``run`` returns the exit status. It may raise any ``SwellError``; the user sees its message on one line.
    Modules that are slow to import are imported inside ``run``, so that ``swell --help`` stays fast.
    """

    summary: str  # one line, in the list of commands
    description: str  # a paragraph or two, in the command's own help
    example: str  # a command line to copy
    options: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
