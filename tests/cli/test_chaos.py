"""``swell chaos`` strikes a user's own script and says what that cost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swell.cli import main
from tests.supervisor.namespaces import why_not

SCRIPT = """
import sys, time
import torch
from torch.utils.data import TensorDataset
import swell
from swell.checkpoint.cadence import Cadence

torch.manual_seed(0)  # replicas with other data are refused
data = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
model = torch.nn.Linear(3, 1)
job = swell.Job(sys.argv[1], batch=8, device="cpu", save=Cadence(every_steps=4))
job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = job.loader(data, shuffle=True)
for epoch in job.epochs(int(sys.argv[2])):
    for x, y in loader:
        time.sleep(0.03)
        job.backward(((model(x) - y) ** 2).mean())
        job.step()
job.close()
"""


def start(tmp_path: Path, *options: str, epochs: int) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text(SCRIPT)
    line = [sys.executable, "-m", "swell", "chaos", "--show", "none", "--run-dir", str(tmp_path / "run")]
    line += [*options, str(tmp_path / "train.py"), str(tmp_path / "run"), str(epochs)]
    return subprocess.run(line, capture_output=True, text=True, timeout=240)


def chaos(tmp_path: Path, *options: str, epochs: int) -> tuple[int, dict[str, Any]]:
    """Run it; its status and its report."""
    done = start(tmp_path, "--json", *options, epochs=epochs)
    assert "{" in done.stdout, done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout[done.stdout.index("{\n") :])


@pytest.mark.slow
@pytest.mark.distributed
def test_a_script_struck_at_chosen_points_loses_nothing(tmp_path: Path) -> None:
    faults = ("--fail-at", "1:4:reduce", "--fail-at", "0:9:commit:exit", "--fail-at", "7:1:backward")
    status, report = chaos(tmp_path, "--workers", "2", *faults, epochs=3)
    assert status == 0
    assert report["faults"] == {"kill in reduce": 1, "exit in commit": 1}
    assert report["faults_not_reached"] == 1
    assert (report["steps"], report["samples"], report["lost"], report["repeated"]) == (24, 192, 0, 0)
    assert report["redone"] >= 1 and report["longest_pause_s"] > 0


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("step", "saved", "ending"),
    [
        (2, {0}, "2 were repeated from the beginning, because there was no checkpoint"),
        (14, {4, 8, 12}, "from a checkpoint"),  # a save runs beside training, so the last one may not be done yet
    ],
)
def test_steps_that_nobody_has_any_more_are_done_again_from_where_there_is_something(
    step: int, saved: set[int], ending: str, tmp_path: Path
) -> None:
    done = start(tmp_path, "--workers", "1", "--fail-at", f"0:{step}:backward", epochs=2)
    assert done.returncode == 3, "work was lost" + done.stdout + done.stderr
    found = re.search(rf"work     went back from {step} to (\d+)", done.stdout)
    assert found is not None and int(found[1]) in saved, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("steps ")]
    assert line.startswith("steps    16 committed; ") and line.endswith(ending)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_script_struck_now_and_then_is_stopped_when_its_time_is_over(tmp_path: Path) -> None:
    strikes = ("--mtbf", "1.5", "--kinds", "kill,term", "--duration", "9", "--max-faults", "4")
    status, report = chaos(tmp_path, "--workers", "1:3", "--start", "2", *strikes, epochs=10_000)
    assert (status, report["status"]) == (3 if report["rewound"] else 0, 143)  # all workers may be struck at once
    assert 1 <= sum(report["faults"].values()) <= 4
    assert report["steps"] > 0 and (report["lost"], report["repeated"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_killed_supervisor_is_started_again_and_nothing_is_lost(tmp_path: Path) -> None:
    strikes = ("--mtbf", "1", "--kinds", "supervisor", "--max-faults", "1", "--duration", "8")
    status, report = chaos(tmp_path, "--workers", "2", *strikes, epochs=10_000)
    assert (status, report["status"], report["left_behind"]) == (0, 143, 0)
    assert report["faults"] == {"supervisor": 1}
    assert (report["lost"], report["repeated"], report["rewound"]) == (0, 0, 0) and report["steps"] > 0


@pytest.mark.slow
@pytest.mark.distributed
def test_workers_that_get_stuck_or_lose_their_clock_cost_nothing(tmp_path: Path) -> None:
    strikes = ("--mtbf", "2", "--kinds", "stuck,spin,clock", "--max-faults", "2", "--duration", "20", "--seed", "2")
    options = ("--workers", "1:2", "--start", "2", "--stall-timeout", "8")
    status, report = chaos(tmp_path, *options, *strikes, epochs=10_000)
    assert (report["status"], report["lost"], report["repeated"]) == (143, 0, 0)
    assert set(report["faults"]) <= {"stuck", "spin", "clock"} and report["faults"]
    assert status == (3 if report["rewound"] else 0)


PRELOAD = ("--preload", "torch,torch.distributed,torch._dynamo,swell.job")


@pytest.mark.slow
@pytest.mark.distributed
def test_workers_that_fail_resizes_a_cleaner_and_an_unread_terminal_cost_nothing(tmp_path: Path) -> None:
    kinds = "exception,oom,resize,storm,cleaner,terminal"
    strikes = ("--mtbf", "0.5", "--kinds", kinds, "--at-once", "2", "--stop-after", "12", *PRELOAD)
    status, report = chaos(tmp_path, "--workers", "1:3", "--start", "2", *strikes, epochs=10_000)
    assert (report["status"], report["lost"], report["repeated"]) == (143, 0, 0)
    assert 12 <= sum(report["faults"].values()) <= 13 and set(report["faults"]) <= set(kinds.split(","))
    assert status == (3 if report["rewound"] else 0)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_stale_worker_and_a_second_writer_do_no_harm(tmp_path: Path) -> None:
    strikes = ("--mtbf", "1", "--kinds", "stale,writer", "--stop-after", "3", "--seed", "1", *PRELOAD)
    status, report = chaos(tmp_path, "--workers", "2", "--grace", "10", *strikes, epochs=10_000)
    assert set(report["faults"]) == {"stale", "writer"}
    assert (report["status"], report["left_behind"], report["let_in"]) == (143, 0, 0)
    assert (report["lost"], report["repeated"]) == (0, 0) and status in (0, 3)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_disk_that_takes_nothing_and_a_broken_network_cost_nothing(tmp_path: Path) -> None:
    kinds = "disk,readonly,partition,delay,drop"
    strikes = ("--mtbf", "1", "--kinds", kinds, "--stop-after", "5", "--disk", "8", "--keep", str(tmp_path / "kept"))
    status, report = chaos(tmp_path, "--workers", "2", *strikes, epochs=10_000)
    assert (status, report["status"]) == (0, 143)
    assert set(report["faults"]) <= set(kinds.split(",")) and sum(report["faults"].values()) == 5
    assert (tmp_path / "kept" / "events.jsonl").exists()
    assert (report["lost"], report["repeated"], report["rewound"]) == (0, 0, 0)
    assert not list((tmp_path / "run").iterdir()), "nothing outside was touched"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "expected --mtbf SECONDS, --fail-at"),
        (["--mtbf", "0"], "mtbf is 0"),
        (["--mtbf", "1", "--kinds", "kill,shout"], "kinds is 'kill,shout'"),
        (["--mtbf", "1", "--at-once", "0"], "at-once is 0"),
        (["--mtbf", "1", "--stop-after", "0"], "stop-after is 0"),
        (["--fail-at", "1:lunch"], "'1:lunch'"),
        (["--mtbf", "1", "--engine", "torchrun"], "--engine is torchrun"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    line: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    assert main(["chaos", *line, "train.py"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_script_that_does_not_train_with_swell_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "idle.py").write_text("print('hello')")
    line = ["chaos", "--fail-at", "0:0:join", "--run-dir", str(tmp_path / "run"), str(tmp_path / "idle.py")]
    assert main(line) == 2
    assert "trains with swell.Job" in capsys.readouterr().err
