"""``swell run`` and the commands that control a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from swell.cli import main
from tests.supervisor.supervised import SupervisedRun

WORKER = str(Path(__file__).parents[1] / "supervisor" / "plain_worker.py")


def test_a_run_can_be_watched_resized_and_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1:2", "--start", "1", WORKER, "train") as run:
        run.wait_for(lambda: run.status().get("state") == "training")
        folder = str(run.run_dir)
        assert main(["resize", folder, "2", "--wait", "60"]) == 0
        assert main(["status", folder]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert shown[0].startswith("training: generation 2 of 2 workers, 2 wanted, 0 of 3 restarts used")
        assert [line.split()[:2] for line in shown[2:]] == [["0", "1"], ["1", "2"]]
        assert main(["status", folder, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["members"] == [1, 2]
        assert main(["resize", folder, "3"]) == 2
        assert "3; expected 1, 2" in capsys.readouterr().err
        assert main(["stop", folder, "--wait", "60"]) == 0
        assert run.end() == 143
        assert main(["status", folder]) == 2
        assert "no run is active" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["nowhere.py"], "nowhere.py"),
        (["--workers", "0", WORKER], "workers is '0'"),
        (["--workers", "1:4", "--start", "5", WORKER], "5; expected 1 to 4"),
        (["--max-restarts", "-1", WORKER], "--max-restarts is -1"),
        (["--hang-timeout", "0", WORKER], "--hang-timeout is 0"),
        (["--trace", "nowhere.csv", WORKER], "nowhere.csv"),
        (["--engine", "torchrun", "--workers", "2,4,8", WORKER], "--workers is 2, 4, 8"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_it_starts(
    line: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", *line]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_module_is_started_as_python_does_and_gets_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import sys; print(sys.argv[1:], __name__)")
    line = [sys.executable, "-m", "swell", "run", "-m", "package.train", "--epochs", "3"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "['--epochs', '3'] __main__" in done.stdout
    assert (tmp_path / "runs" / "train" / "logs" / "worker-1.log").exists()


def test_a_run_that_was_never_started_cannot_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(tmp_path)]) == 2
    assert "can be resumed" in capsys.readouterr().err
