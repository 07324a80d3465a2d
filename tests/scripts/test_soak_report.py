"""The soak's report says what happened, and takes its place in a page."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run_soak() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_soak", ROOT / "scripts" / "run_soak.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(**facts: Any) -> dict[str, Any]:
    zero = ("steps", "samples", "lost", "repeated", "redone", "rewound", "unexplained", "left_behind", "let_in")
    figures = {"median_pause_s": 0.1, "longest_pause_s": 2.0, "weights_off_by": 3e-16, "compared_at": 1234}
    return {**dict.fromkeys(zero, 0), **figures, "strikes": 3, "faults": {"kill": 2, "disk": 1}, **facts}


def test_a_report_counts_strikes_by_kind_and_takes_the_place_of_the_last_one(
    run_soak: ModuleType, tmp_path: Path
) -> None:
    facts: dict[str, Any] = {"date": "2030-01-02", "machine": "2 cores", "strikes": 1006, "took_s": 600}
    facts |= {"left_behind": [], "not_struck": "", "models": {"one": row(), "two": row(faults={"kill": 3}, lost=7)}}
    text = run_soak.table(facts)
    assert "2030-01-02, 2 cores: **1,006 strikes** in 10 minutes, left behind: nothing." in text
    assert "| samples lost | 0 | 7 |" in text and "| `kill` | 2 | 3 |" in text and "| `disk` | 1 | 0 |" in text
    page = tmp_path / "page.md"
    page.write_text(f"before\n{run_soak.BEGIN}\nold\n{run_soak.END}\nafter\n")
    for _ in range(2):
        run_soak.publish(facts, page)
    assert page.read_text() == f"before\n{run_soak.BEGIN}\n{text}\n{run_soak.END}\nafter\n"


def test_the_page_has_a_place_for_it(run_soak: ModuleType) -> None:
    page = (ROOT / "docs" / "what_can_go_wrong.md").read_text()
    assert page.count(run_soak.BEGIN) == page.count(run_soak.END) == 1
