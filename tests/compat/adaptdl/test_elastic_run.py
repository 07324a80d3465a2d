"""Under ``swell run`` an AdaptDL script goes on in its processes while workers come and go with notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.supervised import SupervisedRun

SCRIPT = Path(__file__).with_name("elastic_script.py")


@pytest.mark.slow
@pytest.mark.distributed
def test_every_epoch_counts_every_sample_once_while_workers_join_and_leave(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1:2", "--start", "1", str(SCRIPT), str(tmp_path)) as run:
        run.wait_for(lambda: "epoch 1:" in run.terminal(), timeout_s=120)
        run.ask("resize", workers=2)
        run.wait_for(lambda: "samples, sum 1770, with 2" in run.terminal(), timeout_s=120)
        run.ask("resize", workers=1)
        after = run.terminal().count("epoch")
        run.wait_for(lambda: run.terminal().count("epoch") > after + 3, timeout_s=120)
        (tmp_path / "enough").touch()
        assert run.end(timeout_s=120) == 0, run.terminal()
        lines = [line for line in run.terminal().splitlines() if "epoch" in line and "samples" in line]
    assert all("60 samples, sum 1770" in line for line in lines), lines
    assert "with 1" in lines[-1]
