"""The example of FairScale's documentation runs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "migrating" / "fairscale" / "adascale.py"


def test_the_documented_loop_runs_and_stops_by_accumulated_gain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SWELL_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--epochs", "1"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    words = capsys.readouterr().out.split()
    assert int(words[0]) < 44 <= int(words[7])
