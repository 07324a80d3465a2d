"""Each example is a plain script and the same script with swell, and the difference is small enough to read."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from swell.core.events import Stepped
from swell.telemetry import read_events
from tests.examples.pairs import EXAMPLES, NAMES, PAIRS


@pytest.mark.parametrize("name", NAMES)
def test_a_loop_changes_by_few_lines(name: str) -> None:
    before, after = (
        (EXAMPLES / name / script).read_text().splitlines() for script in ("train_torch.py", "train_swell.py")
    )
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert 0 < len(changed) <= PAIRS[name].changed_lines, "\n".join(changed)


@pytest.mark.parametrize("script", ["train_torch.py", "train_swell.py"])
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_on_the_data_it_brings_along(name: str, script: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "SWELL_DATA"}
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "torchvision.py").write_text("raise ImportError('nothing is downloaded in tests')\n")
    environment["PYTHONPATH"] = os.pathsep.join([str(hidden), *environment.get("PYTHONPATH", "").split(os.pathsep)])
    line = [sys.executable, str(EXAMPLES / name / script), *PAIRS[name].brief]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^(epoch 0|step 10|iteration 0): ", done.stdout, re.MULTILINE)
    if script == "train_swell.py":
        events = list(read_events(tmp_path / "runs" / name / "events.jsonl"))
        assert sum(isinstance(event, Stepped) for event in events) >= 2


def test_every_example_is_one_file_with_a_page_that_explains_it() -> None:
    for name in NAMES:
        assert {path.name for path in (EXAMPLES / name).iterdir() if path.name != "__pycache__"} == {
            "README.md",
            "train_torch.py",
            "train_swell.py",
        }
