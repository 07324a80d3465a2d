"""One folder for a run, whoever names it: the script, or ``swell run --run-dir``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import swell
from swell.cli import main
from swell.core.events import EpochStarted, Stepped, Warned
from swell.errors import CheckpointError, ConfigError, RunFolderError
from swell.supervisor.run_dir import RunDir
from swell.telemetry import EventLog, read_events, recent_events
from tests.job.scenario import Points, make_model, mean_loss
from tests.supervisor.supervised import SupervisedRun


def test_the_folder_of_swell_run_is_the_default_of_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWELL_RUN_DIR", str(tmp_path / "run"))
    assert swell.Job(batch=4).run_dir is None, "a folder that nobody chose is for the supervisor only"
    monkeypatch.setenv("SWELL_RUN_DIR_GIVEN", "1")
    assert swell.Job(batch=4).run_dir == tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    assert swell.Job("run", batch=4).run_dir == Path("run"), "the same folder by another path"


def test_two_folders_for_one_run_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWELL_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("SWELL_RUN_DIR_GIVEN", "1")
    with pytest.raises(ConfigError, match=r"run_dir is '.*other'.*--run-dir. gives '.*run'; expected one folder"):
        swell.Job(tmp_path / "other", batch=4)


@pytest.mark.parametrize("kind", ["dangling link", "link to itself", "file", "file on the way"])
def test_a_folder_that_can_never_be_written_is_refused_before_the_first_step(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    if kind == "dangling link":
        folder.symlink_to(tmp_path / "nowhere")
    elif kind == "link to itself":
        folder.symlink_to(folder)
    else:
        folder.write_text("")
        folder = folder / "inner" if kind == "file on the way" else folder
    model, trained = make_model(), False
    with (
        pytest.raises(
            (RunFolderError, CheckpointError), match=r"cannot be (written|listed).* another (one|run folder)"
        ),
        swell.Job(folder, batch=4, device="cpu") as job,
    ):
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.loader(Points(8))
        for _ in job.epochs(1):
            for _ in loader:
                trained = True
    assert not trained


def test_commands_refuse_a_link_to_itself_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "run")
    (tmp_path / "train.py").write_text("")
    for command in (["run", "--run-dir", str(tmp_path / "run"), str(tmp_path / "train.py")], ["status"], ["stop"]):
        line = command if len(command) > 1 else [*command, str(tmp_path / "run")]
        assert main(line) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_run_is_found_by_the_folder_of_its_job_too(tmp_path: Path) -> None:
    supervised = RunDir(tmp_path / "supervised")
    with supervised.lock():
        supervised.write_record({"options": {}, "folder": "."})
        path = supervised.control / "elsewhere"
        supervised.write_address(path)
        supervised.connect(tmp_path / "job")
        assert RunDir(tmp_path / "job").find_socket() == path
        assert RunDir(tmp_path / "job").read_record() == {"options": {}, "folder": "."}
        assert supervised.job_folder == tmp_path / "job" and RunDir(tmp_path / "job").job_folder == tmp_path / "job"
    with pytest.raises(ConfigError, match=r"no run is active.*swell resume"):
        RunDir(tmp_path / "job").find_socket()


SCRIPT = """
import sys, time, torch, swell
data = torch.utils.data.TensorDataset(torch.arange(32.0).unsqueeze(1))
model = torch.nn.Linear(1, 1)
job = swell.Job(sys.argv[1], batch=4, device="cpu")
job.wrap(model, torch.optim.SGD(model.parameters(), lr=1e-4))
loader = job.loader(data)
for epoch in job.epochs(100000):
    for (x,) in loader:
        time.sleep(0.01)
        job.backward(model(x).square().mean())
        job.step()
"""


@pytest.mark.distributed
@pytest.mark.slow
def test_the_status_tells_how_training_goes_once_for_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    folder = str(tmp_path / "run")
    with SupervisedRun.of(tmp_path, "--workers", "2", str(tmp_path / "train.py"), folder) as run:
        run.wait_for(lambda: any(isinstance(e, Stepped) for e in recent_events(run.run_dir / "events.jsonl")))
        assert main(["status", folder]) == 0
        text = capsys.readouterr().out
        line = text.splitlines()[1]
        assert all(word in line for word in ("epoch ", "/100000", "samples ", "batch 4", "loss ", "left ")), text
        assert text.count("loss") == 1
        assert main(["status", folder, "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)["training"]
        assert figures["batch"] == 4 and figures["replicas"] == 2 and figures["left_s"] > 0
        run.ask("stop")
        assert run.end() == 143


def test_the_latest_figures_are_read_from_the_end_of_a_long_log(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    figures = {"global_batch": 4, "replicas": 1, "micro_batch": 4, "accumulation": 1, "lr": (0.1,)}
    figures |= {"lr_factor": (1.0,), "gain": 1.0, "progress": 1.0, "step_s": 0.1}
    for epoch in range(2):
        log.emit(EpochStarted(time=0.0, epoch=epoch, samples=0))
        for step in range(600):
            log.emit(Stepped(time=0.0, step=step, epoch=epoch, samples=step, **figures))
            log.emit(Warned(time=0.0, message='"event": "step" in a message'))
    log.flush()
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"event": "step", "time": 0.0, "st')  # being written
    begin, *steps = recent_events(tmp_path / "events.jsonl")
    assert isinstance(begin, EpochStarted) and begin.epoch == 1
    assert [step.step for step in steps if isinstance(step, Stepped)] == list(range(568, 600))
    log.close()
    log.emit(EpochStarted(time=0.0, epoch=2, samples=600))
    *steps, begin = recent_events(tmp_path / "events.jsonl")
    assert isinstance(begin, EpochStarted) and begin.epoch == 2, "whose steps are not written yet"
    assert [step.step for step in steps if isinstance(step, Stepped)] == list(range(568, 600))
    log.close()
    assert recent_events(tmp_path / "none.jsonl") == []


def train(folder: Path, *, epochs: int, save: object = 300.0) -> list[int]:
    """The steps after which checkpoints were complete."""
    with swell.Job(folder, batch=4, save=save, keep=9, progress=False) as job:  # type: ignore[arg-type]
        model = make_model()
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.loader(Points(16))
        for _ in job.epochs(epochs):
            for x, y, _ in loader:
                job.backward(mean_loss(model, x, y))
                job.step()
                job.engine.saving.wait()
    return [event.step for event in read_events(folder / "events.jsonl") if event.kind == "save"]  # type: ignore[attr-defined]


def test_the_first_save_is_made_at_the_end_of_the_first_epoch(tmp_path: Path) -> None:
    assert train(tmp_path / "clock", epochs=3) == [4, 12], "after the first epoch, and at the end of the loop"
    assert train(tmp_path / "clock", epochs=5)[2:] == [20], "a resumed run has a checkpoint"
    assert train(tmp_path / "never", epochs=3, save=None) == [12]
    assert train(tmp_path / "steps", epochs=3, save=swell.Cadence(every_steps=5)) == [5, 10, 12]


def test_the_first_save_is_made_after_a_minute_if_the_epoch_is_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swell.job.saving.FIRST_S", 1e-9)
    assert train(tmp_path, epochs=1)[0] == 1


def resumed(folder: Path, *, on_resume: str, scheduled: bool, lr: float, decay: float) -> tuple[float, float]:
    job = swell.Job(folder, batch=8, micro=8, statistics=False, progress=False)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=decay)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if scheduled else None
    job.wrap(model, optimizer, scheduler=scheduler, on_resume=on_resume)
    loader = job.loader(Points(32))
    for x, y, _ in (batch for _ in job.epochs(1) for batch in loader):
        job.backward(mean_loss(model, x, y))
        job.step()
        if job.steps in (2, 3):
            job.save()
            break
    job.close()
    return optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_resumed_run_takes_the_scripts_settings_where_that_is_asked_for(tmp_path: Path, scheduled: bool) -> None:
    resumed(tmp_path, on_resume="saved", scheduled=scheduled, lr=0.1, decay=0.0)
    with pytest.warns(UserWarning, match=r"lr is 0\.2 from here on.*started with 0\.1.*on_resume=\"saved\""):
        lr, decay = resumed(tmp_path, on_resume="script", scheduled=scheduled, lr=0.2, decay=0.3)
    assert lr == pytest.approx(0.2 * 0.5**3 if scheduled else 0.2) and decay == 0.3
    with pytest.raises(ConfigError, match="on_resume is 'mine'"):
        resumed(tmp_path, on_resume="mine", scheduled=False, lr=0.2, decay=0.0)
