"""An example ends where its plain twin ends: on one process, on two, and on workers of which one is killed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.pairs import EXAMPLES, PAIRS, run_script
from tests.workers import run_processes

ROOT = Path(__file__).parents[2]
ALONE = {"RANK": "", "WORLD_SIZE": ""}  # no launcher


def plain_result(name: str, folder: Path) -> float:
    arguments = (name, "train_torch.py", str(folder), PAIRS[name].arguments)
    return run_processes(1, run_script, *arguments, environ=ALONE, timeout_s=300)[0]


@pytest.mark.distributed
@pytest.mark.parametrize("name", PAIRS)
def test_one_process_and_two_end_where_the_plain_script_ends(name: str, tmp_path: Path) -> None:
    plain = plain_result(name, tmp_path)
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        arguments = (name, "train_swell.py", str(folder), PAIRS[name].arguments)
        results = run_processes(workers, run_script, *arguments, timeout_s=300)
        assert results == pytest.approx([plain] * workers, rel=PAIRS[name].tolerance)


def printed_result(folder: Path) -> float:
    """The last result that any worker has printed, as in ``epoch 2: loss 0.25``."""
    text = "\n".join(log.read_text() for log in folder.rglob("*.log"))
    results = re.findall(r"(?:epoch|step|iteration) (\d+): \D*([\d.]+)(%?)", text)
    _, number, percent = max(results, key=lambda result: int(result[0]))
    return float(number) / (100 if percent else 1)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("name", PAIRS)
def test_workers_of_which_one_is_killed_end_where_the_plain_script_ends(name: str, tmp_path: Path) -> None:
    folder, pair = tmp_path / "runs" / name, PAIRS[name]
    line = [sys.executable, "-m", "swell", "chaos", "--workers", "1:2", "--start", "2", "--fail-at", "1:5:reduce"]
    line += [
        "--json",
        "--show",
        "none",
        "--run-dir",
        str(folder),
        str(EXAMPLES / name / "train_swell.py"),
        *pair.arguments,
    ]
    (tmp_path / "torchvision.py").write_text("raise ImportError('nothing is downloaded in tests')\n")
    environment = {key: value for key, value in os.environ.items() if key != "SWELL_DATA"}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(tmp_path)]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert report["faults"] == {"kill in reduce": 1} and report["lost"] == report["repeated"] == 0
    assert pair.samples is None or report["samples"] == pair.samples
    assert printed_result(folder) == pytest.approx(plain_result(name, tmp_path), rel=pair.tolerance, abs=0.01)
