"""Under ``swell run`` an AdaptDL script keeps its processes while workers join, leave and are lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from swell.core.events import StepSkipped
from swell.telemetry import LOG_NAME, read_events
from tests.supervisor.supervised import SupervisedRun

SCRIPT = Path(__file__).with_name("elastic_script.py")
WHOLE = "60 and 60 samples, sum 1770"

pytestmark = [pytest.mark.slow, pytest.mark.distributed]


def reports(run: SupervisedRun) -> list[str]:
    return [line for line in run.terminal().splitlines() if "epoch" in line and "samples" in line]


def wait_for_epochs(run: SupervisedRun, epochs: int = 2) -> None:
    """Wait until N more epochs are done."""
    before = len(reports(run))
    run.wait_for(lambda: len(reports(run)) >= before + 2 * epochs, timeout_s=120)


def give_order(run: SupervisedRun, order: str) -> None:
    """Let one worker fail, and wait until it does."""
    (run.folder / order).touch()
    run.wait_for(lambda: not (run.folder / order).exists(), timeout_s=120)


def end(run: SupervisedRun, folder: Path) -> list[str]:
    (folder / "enough").touch()
    assert run.end(timeout_s=120) == 0, run.terminal()
    return reports(run)


def test_every_epoch_counts_every_sample_once_while_workers_join_and_leave(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1:2", "--start", "1", str(SCRIPT), str(tmp_path)) as run:
        run.wait_for(lambda: "epoch 1 trained:" in run.terminal(), timeout_s=120)
        run.ask("resize", workers=2)
        run.wait_for(lambda: f"{WHOLE}, with 2" in run.terminal(), timeout_s=120)
        run.ask("resize", workers=1)
        wait_for_epochs(run)
        lines = end(run, tmp_path)
    assert all(WHOLE in line for line in lines), lines
    assert "with 1" in lines[-1]


@pytest.mark.parametrize("where", ["trained", "judged", "the exchange of judged"])
def test_a_worker_that_is_killed_takes_no_sums_with_it(tmp_path: Path, where: str) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1:3", "--start", "3", str(SCRIPT), str(tmp_path)) as run:
        run.wait_for(lambda: f"{WHOLE}, with 3" in run.terminal(), timeout_s=120)
        for _ in range(2):
            give_order(run, f"die in {where}")
            wait_for_epochs(run)
        lines = end(run, tmp_path)
    assert all(WHOLE in line for line in lines), lines
    loop = where.split()[-1]
    assert any(f"epoch 0 {loop}" in line for line in lines) and any(line.count("with") > 1 for line in lines)


def test_an_overflow_on_one_worker_repeats_the_step_and_counts_its_samples_once(tmp_path: Path) -> None:
    line = ("--workers", "1:2", "--start", "2", str(SCRIPT), str(tmp_path), "float16")
    with SupervisedRun.of(tmp_path, *line) as run:
        run.wait_for(lambda: f"{WHOLE}, with 2" in run.terminal(), timeout_s=120)
        for _ in range(2):
            give_order(run, "overflow in trained")
            wait_for_epochs(run)
        lines = end(run, tmp_path)
    assert all(WHOLE in line for line in lines), lines
    skipped = [event for event in read_events(run.run_dir / LOG_NAME) if isinstance(event, StepSkipped)]
    assert [event.redone for event in skipped] == [True, True]
