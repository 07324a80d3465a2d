"""Each example is a plain script and the same with swell, at most 5 lines apart; both end at about the same loss."""

from __future__ import annotations

import difflib
import os
import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["lightning", "fabric"])
def test_a_pair_differs_in_at_most_five_lines_and_ends_where_the_plain_one_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, ours = EXAMPLES / name / "train_plain.py", EXAMPLES / name / "train_swell.py"
    lines = difflib.unified_diff(plain.read_text().splitlines(), ours.read_text().splitlines(), n=0)
    added = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
    assert 0 < len(added) <= 5
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "3", "--limit", "640"])
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "")
    results = [runpy.run_path(str(path))["main"]() for path in (plain, ours)]
    assert results[1] == pytest.approx(results[0], rel=0.25)
    assert (tmp_path / "runs" / name / "events.jsonl").exists()


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = EXAMPLES.parent / "docs" / "lightning.md"
    blocks = re.findall(r"^```\{\.python[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), page.name, "exec"), {"__name__": "__main__"})
