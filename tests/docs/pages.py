"""The parts of a page that tests look at: its blocks of Python and its tables."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[2]
WRITTEN = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "generated" not in page.parts]
PAGES = [ROOT / "README.md", *WRITTEN, *sorted((ROOT / "examples").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<indent> *)```(?:python\b|\{\.python\b)(?P<info>[^\n]*)\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
BAR = re.compile(r"(?<!\\)\|")  # not one that is written as \\|


def blocks(page: Path) -> list[re.Match[str]]:
    """The Python of a page, in its order."""
    return list(FENCE.finditer(page.read_text()))


def section(page: Path, heading: str) -> str:
    """What stands under a heading, up to the next one of the same level."""
    level = heading.partition(" ")[0]
    after = page.read_text().split(f"\n{heading}\n", 1)[1]
    return re.split(rf"^{level} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def tables(text: str) -> list[list[list[str]]]:
    """The cells of every table, row by row, without its two header lines."""
    lines = groupby(text.splitlines(), key=lambda line: line.startswith("|"))
    bodies = [list(group)[2:] for is_table, group in lines if is_table]
    return [[[cell.strip() for cell in BAR.split(row)[1:-1]] for row in body] for body in bodies]


def code_in(text: str) -> list[str]:
    """What is set as code in a text."""
    return re.findall(r"`([^`]+)`", text)
