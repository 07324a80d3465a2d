"""Each recipe trains the same on one process, on two, and on workers of which one is killed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import swell
from tests.docs.pages import ROOT, blocks
from tests.docs.test_code_blocks import runnable
from tests.workers import run_processes

PAGE = ROOT / "docs" / "recipes.md"
IMPORTS, *CODE = [textwrap.dedent(block["code"]) for block in blocks(PAGE) if runnable(block)]
RECIPES = {re.findall(r'swell\.Job\("runs/(\w+)"', code)[0]: f"{IMPORTS}\n{code}" for code in CODE}
DRAWS = {"gradient_penalty"}  # numbers that depend on which replica computes a sample


def run_recipe(name: str, folder: str) -> tuple[int, list[Any]]:
    """The samples that were trained on, and the weights of the first model."""
    os.chdir(folder)
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(RECIPES[name], f"recipe {name}", "exec"), names)
    return names["job"].samples, weights_of(folder, name)


def weights_of(folder: str | Path, name: str) -> list[Any]:
    return [weight.numpy() for weight in swell.load_weights(Path(folder) / "runs" / name).values()]


def alone(name: str, folder: Path) -> tuple[int, list[Any]]:
    folder.mkdir()
    return run_processes(1, run_recipe, name, str(folder), environ={"RANK": "", "WORLD_SIZE": ""}, timeout_s=300)[0]


def assert_same(name: str, ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        if name not in DRAWS:
            torch.testing.assert_close(torch.from_numpy(one), torch.from_numpy(other), rtol=1e-3, atol=1e-4)


def test_the_page_has_a_recipe_for_each_of_its_sections() -> None:
    sections = re.findall(r"^## ", PAGE.read_text(), re.MULTILINE)
    assert len(blocks(PAGE)) - 1 == len(sections) == 12


@pytest.mark.distributed
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_on_two_processes_is_that_on_one(name: str, tmp_path: Path) -> None:
    samples, weights = alone(name, tmp_path / "alone")
    for count, ours in run_processes(2, run_recipe, name, str(tmp_path), timeout_s=300):
        assert count == samples
        assert_same(name, ours, weights)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_on_workers_of_which_one_is_killed_is_that_on_one(name: str, tmp_path: Path) -> None:
    script = tmp_path / "recipe.py"
    script.write_text(RECIPES[name])
    line = [sys.executable, "-m", "swell", "chaos", "--workers", "1:2", "--start", "2", "--fail-at", "1:5:reduce"]
    line += ["--json", "--show", "none", "--run-dir", str(tmp_path / "runs" / name), str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    report = json.loads(done.stdout[done.stdout.index("{") :])
    samples, weights = alone(name, tmp_path / "alone")
    assert report["faults"] == {"kill in reduce": 1} and report["samples"] == samples
    assert_same(name, weights_of(tmp_path, name), weights)
