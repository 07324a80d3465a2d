"""A run whose checkpoints are all damaged does not begin again by itself; the user can ask for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import swell
from swell.checkpoint.folder_names import numbered_folders
from swell.core.events import RunStarted
from swell.errors import CheckpointError, ConfigError, RunFolderError
from swell.telemetry import read_events
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import run_workers


def train(folder: Path | str, *, epochs: int = 1, **settings: Any) -> int:
    """Train for so many epochs of 4 steps; the steps the job then has."""
    job = swell.Job(folder, batch=10, save=swell.Cadence(every_steps=2), **settings)
    model = make_model()
    model, _ = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(Points(40), shuffle=True)
    for _ in job.epochs(epochs):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
    job.close()
    return job.steps


def damage(folder: Path) -> list[str]:
    """Cut every checkpoint short, each in another file; their names."""
    names = []
    for _, path in numbered_folders(folder / "checkpoints"):
        os.truncate(sorted(path.iterdir())[len(names)], 3)
        names.append(path.name)
    return names


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_with_what_is_damaged(tmp_path: Path) -> None:
    train(tmp_path)
    log, names = (tmp_path / "events.jsonl").read_bytes(), damage(tmp_path)
    assert len(names) > 1
    with pytest.raises(CheckpointError, match=r"all \d checkpoints in .* are damaged.*fresh=True.*--fresh") as refusal:
        train(tmp_path, epochs=2)
    assert all(name in str(refusal.value) for name in names)
    assert [path.name for _, path in numbered_folders(tmp_path / "checkpoints")] == names, "nothing was written"
    more = (tmp_path / "events.jsonl").read_bytes()[len(log) :]
    assert b'"event": "run"' not in more and more.count(b'"event": "warning"') == len(names)


def test_a_run_begins_again_on_purpose_and_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path)
    names = damage(tmp_path)
    assert train(tmp_path, fresh=True) == 4
    assert [path.name for _, path in numbered_folders(tmp_path / "set-aside-1" / "checkpoints")] == names
    assert list(read_events(tmp_path / "set-aside-1" / "events.jsonl"))
    assert train(tmp_path, epochs=2) == 8, "it is a run like any other"
    starts = [event.samples for event in read_events(tmp_path / "events.jsonl") if isinstance(event, RunStarted)]
    assert starts == [0, 40]
    monkeypatch.setenv("SWELL_FRESH", "1")
    assert train(tmp_path, epochs=2, fresh=False) == 8, "an argument beats the environment"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert train(tmp_path, epochs=2) == 8 and not (tmp_path / "set-aside-2").exists(), "not after a restart"
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    assert train(tmp_path) == 4 and (tmp_path / "set-aside-2" / "checkpoints").is_dir()
    monkeypatch.setenv("SWELL_FRESH", "yes")
    with pytest.raises(ConfigError, match="SWELL_FRESH is 'yes'"):
        train(tmp_path)
    monkeypatch.delenv("SWELL_FRESH")
    with pytest.raises(ConfigError, match="fresh is 'no'"):
        train(tmp_path, fresh="no")


def train_refused(collective: Any, folder: str) -> tuple[str, str]:
    try:
        train(folder, epochs=2)
    except (CheckpointError, RunFolderError) as error:
        return type(error).__name__, str(error)
    return "", ""


@pytest.mark.distributed
def test_every_replica_is_refused_together(tmp_path: Path) -> None:
    run_workers(2, train_on_replicas, str(tmp_path))
    damage(tmp_path)
    replies = run_workers(2, train_refused, str(tmp_path))
    assert [kind for kind, _ in replies] == ["DamagedCheckpointError", "CheckpointError"]
    assert "--fresh" in replies[0][1] and "first replica" in replies[1][1]


def train_on_replicas(collective: Any, folder: str) -> None:
    train(folder)
