"""Help texts and usage errors: coloured on a terminal, plain text elsewhere."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from typing import IO, Any, NoReturn

from rich.console import Console
from rich.text import Text

# The name of each group is its style.
_COLOURED = (
    r"(?m)^(?P<bold>[A-Z][a-z]+:)(?= swell|$)",  # headings
    r"(?<![\w-])(?P<cyan>--?[a-z][\w-]*)(?: (?P<magenta>[A-Z]+)\b)?",  # options and their values
    r"(?m)^  (?P<green>\$ .*)",  # examples
)


class _Formatter(argparse.HelpFormatter):
    """Prose is wrapped, lines that begin with a space are not; commands are listed without a heading."""

    def __init__(self, prog: str, **kwargs: Any) -> None:
        width = min(shutil.get_terminal_size().columns, 100)
        super().__init__(prog, max_help_position=28, width=width, **kwargs)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines()
        return "\n".join(line if line.startswith(" ") else textwrap.fill(line, width) for line in lines)

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):
            return "".join(self._format_action(choice) for choice in action._get_subactions())
        return super()._format_action(action)


class Parser(argparse.ArgumentParser):
    """An argument parser with coloured help whose errors are one line."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=_Formatter, allow_abbrev=False, add_help=False, **kwargs)
        self.color = False  # Python 3.14 has colours of its own; ours are the same on every version
        self._positionals.title, self._optionals.title = "Arguments", "Options"
        self.add_argument("-h", "--help", action="help", help="show this help and exit")

    def add_subparsers(self, **kwargs: Any) -> Any:
        """Add subcommands; the help lists them before the options."""
        action = super().add_subparsers(**kwargs)
        self._action_groups.insert(0, self._action_groups.pop())
        return action

    def print_help(self, file: IO[str] | None = None) -> None:
        """Write the help text, with colours if the file is a terminal."""
        text = Text(self.format_help())
        for pattern in _COLOURED:
            text.highlight_regex(pattern)
        Console(file=file or sys.stdout, highlight=False, soft_wrap=True).print(text, end="")

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line that names the problem and the help."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")
