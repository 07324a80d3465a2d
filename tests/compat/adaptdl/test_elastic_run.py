"""Under ``swell run`` an AdaptDL script goes on in its processes while workers come, go and are lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.supervisor.supervised import SupervisedRun

SCRIPT = Path(__file__).with_name("elastic_script.py")
WHOLE = "60 and 60 samples, sum 1770"

pytestmark = [pytest.mark.slow, pytest.mark.distributed]


def told(run: SupervisedRun) -> list[str]:
    return [line for line in run.terminal().splitlines() if "epoch" in line and "samples" in line]


def go_on(run: SupervisedRun, epochs: int = 2) -> None:
    """Wait until so many more epochs are through."""
    before = len(told(run))
    run.wait_for(lambda: len(told(run)) >= before + 2 * epochs, timeout_s=120)


def end(run: SupervisedRun, folder: Path) -> list[str]:
    (folder / "enough").touch()
    assert run.end(timeout_s=120) == 0, run.terminal()
    return told(run)


def test_every_epoch_counts_every_sample_once_while_workers_join_and_leave(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1:2", "--start", "1", str(SCRIPT), str(tmp_path)) as run:
        run.wait_for(lambda: "epoch 1 trained:" in run.terminal(), timeout_s=120)
        run.ask("resize", workers=2)
        run.wait_for(lambda: f"{WHOLE}, with 2" in run.terminal(), timeout_s=120)
        run.ask("resize", workers=1)
        go_on(run)
        lines = end(run, tmp_path)
    assert all(WHOLE in line for line in lines), lines
    assert "with 1" in lines[-1]


@pytest.mark.parametrize("where", ["trained", "judged"])
def test_a_worker_that_is_killed_takes_no_sums_with_it(tmp_path: Path, where: str) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1:3", "--start", "3", str(SCRIPT), str(tmp_path)) as run:
        run.wait_for(lambda: f"{WHOLE}, with 3" in run.terminal(), timeout_s=120)
        for _ in range(2):
            (tmp_path / f"die in {where}").touch()
            run.wait_for(lambda: not (tmp_path / f"die in {where}").exists(), timeout_s=120)
            go_on(run)
        lines = end(run, tmp_path)
    assert all(WHOLE in line for line in lines), lines
    assert any(f"epoch 0 {where}" in line for line in lines) and any(line.count("with") > 1 for line in lines)
