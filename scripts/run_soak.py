"""The soak test: strike two kinds of model in every way there is, for SECONDS in all, and report.

    run_soak.py SECONDS [FOLDER]

Fails where a sample was lost or repeated, where the weights differ from those of the undisturbed run, or where a
process or a private folder is left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from swell.checkpoint.store import Store

SCRIPT = Path(__file__).with_name("soak.py")
WORKERS = "kill,term,stop,stuck,spin,clock,supervisor"
MODELS = ("network", "attention")


def soak(folder: Path, model: str, seconds: float, kinds: str) -> dict[str, Any]:
    """Strike one model; the report of swell chaos, with its exit status."""
    run = folder / model
    line = [sys.executable, "-m", "swell", "chaos", "--json", "--show", "none", "--run-dir", str(run)]
    line += ["--workers", "1:3", "--start", "3", "--mtbf", "4", "--kinds", kinds, "--duration", str(seconds)]
    line += ["--seed", str(MODELS.index(model)), "--hang-timeout", "5", "--stall-timeout", "6", "--grace", "20"]
    line += [str(SCRIPT), str(run), model]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)
    start = done.stdout.find("{\n")
    if start < 0:
        raise SystemExit(f"swell chaos ended with status {done.returncode} and no report:\n{done.stdout}")
    return {"exit": done.returncode, **json.loads(done.stdout[start:])}


def difference(folder: Path, model: str) -> tuple[int, float]:
    """The step of the last checkpoint, and how far its weights are from those of the undisturbed run."""
    weights, step = saved_weights(folder / model)
    subprocess.run([sys.executable, str(SCRIPT), str(folder / f"{model}-alone"), model, str(step)], check=True)
    expected, _ = saved_weights(folder / f"{model}-alone")
    return step, float((weights - expected).norm() / expected.norm())


def saved_weights(folder: Path) -> tuple[torch.Tensor, int]:
    """The weights of the newest checkpoint as one vector, and its step."""
    newest = Store(folder).load_newest()
    if newest is None:
        raise SystemExit(f"{folder} has no checkpoint")
    checkpoint, state = newest
    model = state["trainees"][0]["model"]
    return torch.cat([model[name].flatten().double() for name in sorted(model)]), checkpoint.step


def left_over(folder: Path) -> list[str]:
    """Processes of the soak, and private folders, that should be gone."""
    found = [str(path.parent) for path in Path(tempfile.gettempdir()).glob("swell-*/lock")]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in entry.read_bytes() and b"soak.py" in entry.read_bytes():
                found.append(f"process {entry.parent.name}")
        except OSError:
            continue
    return [name for name in found if name != f"process {os.getpid()}"]


def main() -> int:
    """Strike each model, compare, print the report; the exit status."""
    seconds, folder = float(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "runs/soak").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before, failed, total = set(left_over(folder)), False, 0
    print(f"soak of {time.strftime('%Y-%m-%d')}: {seconds:g} s, kinds {WORKERS}", flush=True)
    for model in MODELS:
        report = soak(folder, model, seconds / len(MODELS), WORKERS)
        step, error = difference(folder, model)
        strikes = sum(report["faults"].values())
        total += strikes
        bad = report["exit"] not in (0, 3) or not error < 1e-6
        failed |= bad
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report["faults"].items()))
        print(
            f"{'FAILED' if bad else 'well  '} {model}: {strikes} strikes ({kinds}); {report['steps']:,} steps, "
            f"{report['samples']:,} samples, {report['lost']} lost, {report['repeated']} repeated; "
            f"{report['rewound']} steps done again from a checkpoint; longest pause {report['longest_pause_s']:.2f} s; "
            f"weights at step {step} off by {error:.1e}; status {report['status']}",
            flush=True,
        )
    left = sorted(set(left_over(folder)) - before)
    print(f"{total} strikes; left behind: {', '.join(left) or 'nothing'}")
    return int(failed or bool(left))


if __name__ == "__main__":
    sys.exit(main())
