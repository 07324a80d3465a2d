"""Tables: coloured, with rules on a terminal, aligned plain text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from swell.core.harmless import harmless


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, title: str) -> None:
    """Write rows of text under their headings, aligned to the right; only terminals get the title."""
    rows = [[harmless(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        widths = [max(len(line[column]) for line in (headings, *rows)) for column in range(len(headings))]
        for line in (headings, *rows):
            print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
        return
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, header_style="bold cyan")
    table.collapse_padding = True  # narrow enough for 80 columns
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row, style="dim" if "-" in row else None)  # a row with gaps has no layout
    Console(highlight=False).print(table)


def print_note(text: str) -> None:
    """Write a sentence: wrapped on a terminal, on one line elsewhere."""
    Console(highlight=False, soft_wrap=not sys.stdout.isatty()).print(harmless(text), markup=False)
