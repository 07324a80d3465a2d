"""The examples differ from plain Keras by a few lines, and run; so does the documentation's page."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "keras"
ARGUMENTS = {
    "digits": ("--limit", "128", "--epochs", "1"),
    "resnet": ("--limit", "144", "--epochs", "1", "--blocks", "1"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_example_asks_for_at_most_fifteen_lines(name):
    texts = [(EXAMPLES / name / file).read_text().splitlines() for file in ("train_keras.py", "train_swell.py")]
    changed = [line for line in difflib.ndiff(*texts) if line[0] in "+-"]
    assert len(changed) <= 15


@pytest.mark.skipif(os.environ.get("KERAS_BACKEND") != "torch", reason="each example is run once, on torch")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_example_runs(name, tmp_path):
    script = EXAMPLES / name / "train_swell.py"
    environment = {name: value for name, value in os.environ.items() if name != "SWELL_DATA"}
    subprocess.run([sys.executable, script, *ARGUMENTS[name]], cwd=tmp_path, env=environment, check=True, timeout=200)


def test_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "keras.md").read_text()
    blocks = re.findall(r"^```\{\.python[^\n]*\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    exec(compile("\n".join(blocks), "docs/keras.md", "exec"), {"__name__": "__main__"})
