"""The samples of Run:AI's README run."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "migrating" / "runai" / "mnist.py"


def test_the_readme_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("SWELL_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--epochs", "1", "--limit", "600"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("256 samples a step") and second.startswith("epoch 0: loss")
