"""``swell noise``: a script as it is, measured without training it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swell.cli import main
from tests.cli.measured_script import SCRIPT


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_every_step_of_a_script_is_measured_and_a_picture_drawn(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, run = tmp_path / "noise.png", tmp_path / "run"
    assert main(["noise", "--json", "--after", "5", "--plot", str(picture), str(script), "40", str(run)]) == 0
    findings = json.loads(capsys.readouterr().out)
    noise = findings["noise"]
    assert noise["sure"] and noise["observations"] == findings["steps"] - 5 >= 50  # though each is one micro-batch
    assert noise["interval"][0] <= noise["noise"] / noise["signal"] <= noise["interval"][1]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not run.exists()  # nothing of the run is touched


def test_a_script_that_is_soon_done_tells_what_was_found_so_far(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["noise", str(script), "1", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert "Critical batch size" in text and "from 20 measured steps" in text


def test_a_script_without_a_job_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.py"
    path.write_text("print('nothing to see')")
    assert main(["noise", str(path)]) != 0
    assert "trains with swell.Job" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--after", "--seconds"])
def test_numbers_below_zero_are_refused(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["noise", option, "-1", str(tmp_path / "train.py")]) == 2
    assert f"{option} is -1" in capsys.readouterr().err
