"""Each example is a plain script and the same script with swell, and the difference is small enough to read."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swell.core.events import Stepped
from swell.telemetry import read_events

EXAMPLES = Path(__file__).parents[2] / "examples"
PAIRS = sorted(path.parent.name for path in EXAMPLES.glob("*/train_torch.py"))
MOST_CHANGED_LINES = 15
A_FEW_STEPS = {  # samples; no fewer than the largest batch
    "image_classifier": "256",
    "language_model": "160",
    "lora": "128",
    "streaming": "128",
    "vae": "128",
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_loop_changes_by_at_most_fifteen_lines(name: str) -> None:
    before, after = (
        (EXAMPLES / name / script).read_text().splitlines() for script in ("train_torch.py", "train_swell.py")
    )
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert 0 < len(changed) <= MOST_CHANGED_LINES, "\n".join(changed)


@pytest.mark.parametrize("script", ["train_torch.py", "train_swell.py"])
@pytest.mark.parametrize("name", PAIRS)
def test_an_example_runs_on_the_data_it_brings_along(name: str, script: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "SWELL_DATA"}
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "torchvision.py").write_text("raise ImportError('nothing is downloaded in tests')\n")
    environment["PYTHONPATH"] = os.pathsep.join([str(hidden), *environment.get("PYTHONPATH", "").split(os.pathsep)])
    line = [sys.executable, str(EXAMPLES / name / script), "--epochs", "1", "--limit", A_FEW_STEPS[name]]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "epoch 0: " in done.stdout
    if script == "train_swell.py":
        events = list(read_events(tmp_path / "runs" / name / "events.jsonl"))
        assert sum(isinstance(event, Stepped) for event in events) >= 2


def test_every_example_is_one_file_with_a_page_that_explains_it() -> None:
    for name in PAIRS:
        assert {path.name for path in (EXAMPLES / name).iterdir() if path.name != "__pycache__"} == {
            "README.md",
            "train_torch.py",
            "train_swell.py",
        }
