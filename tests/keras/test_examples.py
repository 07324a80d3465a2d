"""The examples differ from plain Keras by a few lines, and run; so does the documentation's page."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import difflib
import os
import re
import runpy
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "keras"
ARGUMENTS = {
    "mnist": ("--limit", "128", "--epochs", "1"),
    "resnet": ("--limit", "128", "--epochs", "1", "--blocks", "1"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_example_asks_for_at_most_fifteen_lines(name):
    texts = [(EXAMPLES / name / file).read_text().splitlines() for file in ("train_keras.py", "train_swell.py")]
    changed = [line for line in difflib.ndiff(*texts) if line[0] in "+-"]
    assert len(changed) <= 15


@pytest.mark.parametrize("script", ["train_keras.py", "train_swell.py"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_example_runs_on_made_up_data(name, script, tmp_path, monkeypatch):
    if script == "train_keras.py" and keras.backend.backend() != "torch":
        pytest.skip("plain Keras is not ours to test: its script is run once, on torch")
    monkeypatch.delenv("SWELL_DATA", raising=False)
    assert trained(name, script, tmp_path, monkeypatch)["images"].shape[0] == int(ARGUMENTS[name][1])


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="images are read in one way on every backend: once, on torch"
)
@pytest.mark.skipif("SWELL_DATA" not in os.environ, reason="SWELL_DATA names no folder with real images")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_example_reads_real_images(name, tmp_path, monkeypatch):
    images = trained(name, "train_swell.py", tmp_path, monkeypatch)["images"]
    assert images.dtype == "uint8" and images.shape[0] == int(ARGUMENTS[name][1])
    near = abs(images[:, :, 1:].astype(int) - images[:, :, :-1]).mean()  # neighbours in a picture are alike
    assert near < abs(images[1:].astype(int) - images[:-1]).mean() / 2


def trained(name, script, folder, monkeypatch):
    """What a script's names stand for when it is through; run in this process, which has imported Keras already."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [script, *ARGUMENTS[name]])
    try:
        names = runpy.run_path(str(EXAMPLES / name / script))
    finally:
        keras.utils.set_random_seed(0)
    assert names["history"].history["loss"][-1] > 0
    return names


def test_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "keras.md").read_text()
    blocks = re.findall(r"^```\{\.python[^\n]*\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    exec(compile("\n".join(blocks), "docs/keras.md", "exec"), {"__name__": "__main__"})
