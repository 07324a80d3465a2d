"""The examples differ from the plain scripts by a few lines, and run; so do the documentation's pages."""

from __future__ import annotations

import difflib
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "huggingface": ("--limit", "128", "--epochs", "1"),
    "accelerate": ("--epochs", "1"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_changes_at_most_five_lines(name: str) -> None:
    folder = ROOT / "examples" / name
    plain, ours = ((folder / file).read_text().splitlines() for file in ("train_plain.py", "train_swell.py"))
    changed = [line for line in difflib.ndiff(plain, ours) if line[0] == "+" and line[2:].strip()]
    assert 0 < len(changed) <= 5


@pytest.mark.parametrize("script", ["train_plain.py", "train_swell.py"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWELL_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [script, *EXAMPLES[name]])
    runpy.run_path(str(ROOT / "examples" / name / script))


@pytest.mark.parametrize("page", ["transformers.md", "accelerate.md"])
def test_the_documentation_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"^```\{\.python[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": "__main__"})
