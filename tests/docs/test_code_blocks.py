"""The Python of the README and of every page of the documentation runs as it stands.

Blocks of a page share one namespace and an empty folder, from top to bottom, as a reader would type them. A block
fenced as ``{.python .needs-keras}`` runs if that package is installed. Blocks of other languages (shell, diff, py) are
not run.
"""

from __future__ import annotations

import importlib.util
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import PAGES, ROOT, blocks


def runnable(block: re.Match[str]) -> bool:
    needed = re.findall(r"\.needs-(\w+)", block["info"])
    return all(importlib.util.find_spec(package) is not None for package in needed)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in filter(runnable, blocks(page)):
        line = block.string.count("\n", 0, block.start("code"))
        source = "\n" * line + textwrap.dedent(block["code"])  # so that a traceback shows the page's own line
        exec(compile(source, str(page), "exec"), namespace)


def test_blocks_are_found_in_their_order_whatever_their_fence(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\na = 1\n```\n```sh\nmake\n```\n- item\n\n    ```python\n    b = a\n    ```\n"
        "```{.python .needs-no_such_package}\nimport no_such_package\n```\n"
    )
    assert [textwrap.dedent(block["code"]) for block in blocks(page)] == [
        "a = 1\n",
        "b = a\n",
        "import no_such_package\n",
    ]
    assert [runnable(block) for block in blocks(page)] == [True, True, False]
