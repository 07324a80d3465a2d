"""Pages that are generated when the documentation is built: every event, every public name."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import swell
from swell.core import events

ROOT = Path(__file__).parents[2]


def test_every_kind_of_event_has_a_table_of_its_fields() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "event_tables.py"))
    page = script["tables"](script["SOURCE"].read_text())
    kinds = [
        member.kind for member in vars(events).values() if isinstance(member, type) and issubclass(member, events.Event)
    ]
    assert all(f"### {kind}\n" in page for kind in kinds if kind)
    assert "| `noise_low` | float \\| None | 95 % interval of noise_scale |" in page


def test_every_public_name_is_in_the_api_reference_with_its_arguments() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "api_reference.py"))["page"]()
    names = [name for name in swell.__all__ if name != "__version__" and callable(getattr(swell, name))]
    assert [name for name in names if f"### swell.{name}\n" not in page] == []
    assert "swell.plan(global_batch, replicas" in page and "**`.epochs(count)`**" in page
    assert " at 0x" not in page and "``" not in page.replace("```", "")


def test_every_benchmark_has_a_section_on_the_page_of_benchmarks() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "benchmark_page.py"))["page"]()
    folders = [path.parent.name for path in (ROOT / "benchmarks").glob("*/README.md")]
    assert folders and all(f"`benchmarks/{folder}`" in page for folder in folders)
    assert not [line for line in page.splitlines() if line.startswith("# ")]


def test_every_page_with_figures_says_when_and_on_what_they_were_measured() -> None:
    pages = {path.parent.name: path.read_text() for path in (ROOT / "benchmarks").glob("*/README.md")}
    measured = {name: text for name, text in pages.items() if re.search(r"^\|.*\d", text, re.MULTILINE)}
    dateless = [name for name, text in measured.items() if not re.search(r"20\d\d-\d\d-\d\d|\d+ [A-Z]\w+ 20\d\d", text)]
    placeless = [name for name, text in measured.items() if not re.search(r"(?i)cores?\b|H200", text)]
    assert len(measured) > 10 and (dateless, placeless) == ([], [])


def test_the_pictures_of_the_concept_pages_are_current_and_each_is_on_a_page() -> None:
    files = runpy.run_path(str(ROOT / "scripts" / "concept_pictures.py"))["files"]()
    stale = [path.name for path, text in files.items() if not path.exists() or path.read_text() != text]
    assert stale == [], "run python scripts/concept_pictures.py"
    assert {path.name for path in (ROOT / "docs/images/concepts").iterdir()} == {path.name for path in files}
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    assert [path.name for path in files if f"](images/concepts/{path.name})" not in pages] == []
