"""The samples of ETH's README and the comparison of rules run."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "migrating" / "variable_batch_size"


def run(example: str, *arguments: str) -> None:
    sys.argv = [example, *arguments]
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWELL_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", [])


def test_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """ETH E8: the README's own call was a ``TypeError``."""
    run("train_mnist.py", "--limit", "320", "--num_epochs", "1")
    assert "epoch 0 step 0: batch size 64, lr 0.05" in capsys.readouterr().out


def test_every_rule_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    run("mnist_rules.py", "--limit", "320", "--epochs", "1")
    assert len(capsys.readouterr().out.splitlines()) == 6
    assert Path("mnist_rules.png").stat().st_size > 10_000
