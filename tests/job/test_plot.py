"""``job.plot()``: the run in a notebook, and in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import swell
from swell.core.events import RunStarted, Stepped
from swell.errors import ConfigError
from swell.telemetry import read_events


def trained(folder: Path | None) -> swell.Job:
    model = nn.Linear(4, 2)
    job = swell.Job(folder, batch=8, statistics=True, save=None, progress=False, device="cpu")
    model, _ = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(TensorDataset(torch.randn(32, 4), torch.randint(2, (32,))))
    for _ in job.epochs(1):
        for x, y in loader:
            job.backward(nn.functional.cross_entropy(model(x), y))
            job.step()
    return job


def test_a_notebook_shows_the_page_in_a_frame_that_may_only_run_its_own_scripts(tmp_path: Path) -> None:
    with trained(tmp_path / "run") as job:
        page = job.plot()
        shown = page._repr_html_()
        assert shown.startswith("<iframe ") and 'sandbox="allow-scripts"' in shown and "srcdoc=" in shown
        assert shown.count("<") == 2  # the page itself is escaped
        assert "finished" in repr(page)
        assert page.save(tmp_path / "page.html").stat().st_size > 50_000
        assert "2 runs" in job.plot(tmp_path / "run")._repr_html_()


def test_a_job_without_a_folder_has_nothing_to_plot() -> None:
    with trained(None) as job, pytest.raises(ConfigError, match="run_dir is None"):
        job.plot()


def test_the_log_says_settings_machine_waiting_and_measuring(tmp_path: Path) -> None:
    trained(tmp_path / "run").close()
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    start = next(event for event in events if isinstance(event, RunStarted))
    assert start.settings["optimizer"] == "SGD" and start.settings["parameters"] == 10
    assert start.machine["torch"] == torch.__version__ and start.machine["device"] == "cpu"
    steps = [event for event in events if isinstance(event, Stepped)]
    assert all(step.data_s is not None and 0 <= step.data_s <= step.step_s + 1e-3 for step in steps)
    assert any(step.measured for step in steps)
    assert steps[-1].noise_low is not None and steps[-1].noise_high is not None
