"""The documentation's own scripts run: the tutorial in its five steps, and the older example."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

import swell.compat.adaptdl as adaptdl
from tests.workers import run_processes

EXAMPLES = Path(__file__).parents[3] / "examples" / "migrating" / "adaptdl"
SMALL = ["--num-workers", "0", "--test-batch-size", "64", "--log-interval", "1"]


def run_script(name: str, arguments: list[str], stop_after: int | None = None) -> tuple[int | None, str]:
    """A script's exit code and output; rank 0 is asked to stop after ``stop_after`` optimizer steps."""
    steps, output, code = 0, io.StringIO(), None

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == stop_after and os.environ.get("RANK", "0") == "0":
            os.kill(os.getpid(), signal.SIGTERM)

    hook = register_optimizer_step_post_hook(count)
    before, sys.argv = sys.argv, [name, *arguments]
    try:
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output), warnings.catch_warnings():
            patch.delenv("SWELL_DATA", raising=False)  # the digits that come with swell are small
            warnings.simplefilter("ignore")
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.argv = before
        hook.remove()
    adaptdl.close()
    return code, output.getvalue()  # type: ignore[return-value]


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_the_tutorial_runs_at_every_step(step: int) -> None:
    code, output = run_script(f"mnist_step_{step}.py", ["--limit", "128", "--epochs", "1", *SMALL])
    assert code is None and "Accuracy" in output and "/128" in output


@pytest.mark.distributed
def test_the_whole_tutorial_goes_on_over_1_2_and_3_workers_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    arguments = ["--limit", "288", "--epochs", "2", *SMALL]
    environ = {"ADAPTDL_CHECKPOINT_PATH": str(tmp_path)}
    stopped = []
    for workers in (2, 1):
        results = run_processes(workers, run_script, "mnist_step_5.py", arguments, 2, environ=environ, timeout_s=240)
        assert all(code == 143 for code, _ in results)
        stopped.append(results[0][1])
    results = run_processes(3, run_script, "mnist_step_5.py", arguments, None, environ=environ, timeout_s=240)
    assert all(code is None for code, _ in results)
    reports = [line for text in [*stopped, results[0][1]] for line in text.splitlines() if "Accuracy" in line]
    assert len(reports) == 2 and all("/288" in line for line in reports)
    others = [[line for line in text.splitlines() if "Accuracy" in line] for _, text in results]
    assert others[0] == others[1] == others[2]


def test_the_older_documentations_example_runs() -> None:
    code, output = run_script("older_trainer.py", ["--epochs", "2"])
    assert code is None and "epoch 1: local batch 32" in output
