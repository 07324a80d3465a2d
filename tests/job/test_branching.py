"""Branches from one state: made in the script's own loop, they are those of a plain loop, and nothing is written."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import swell
from swell.errors import CheckpointError
from swell.job.branching import Field
from swell.job.rehearsal import Rehearse

BASE, STEPS, SAMPLES = 4, 16, 256


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 5, generator=generator)
    return x, x.sum(1, keepdim=True) + 0.5 * torch.randn(SAMPLES, 1, generator=generator)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))


def optimizer_of(model: nn.Module, kind: str) -> torch.optim.Optimizer:
    if kind == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(run_dir: Path | None, *, kind: str = "sgd", epochs: int = 2, scheduled: bool = False) -> nn.Module:
    model = network()
    optimizer = optimizer_of(model, kind)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=129) if scheduled else None
    job = swell.Job(run_dir, batch=BASE, rule="root", save=None, progress=False)
    job.wrap(model, optimizer, scheduler=scheduler)
    loader = job.loader(TensorDataset(*data()))
    for _ in job.epochs(epochs):
        for x, y in loader:
            job.backward(F.mse_loss(model(x), y))
            job.step()
    job.close()
    return model


def branched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_dir: Path | None = None, *, kind: str = "sgd", **order: Any
) -> dict[str, Any]:
    """The findings of a rehearsal in this process."""
    out = tmp_path / "findings.json"
    order = {"seconds": 0.0, "steps": STEPS, "branch": True, **order}
    monkeypatch.setenv("SWELL_REHEARSE", Rehearse(out=str(out), **order).to_json())
    with pytest.raises(SystemExit) as ended:
        train(run_dir, kind=kind, scheduled=run_dir is not None)
    monkeypatch.delenv("SWELL_REHEARSE")
    assert ended.value.code == 0
    return json.loads(out.read_text())


class Twin:
    """The same branches as a plain loop on copies of a model, one index after another."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, kind: str) -> None:
        self.model, self.optimizer, self.kind = model, optimizer, kind
        self.rate = optimizer.param_groups[0]["lr"]

    def copy(self) -> Twin:
        model = copy.deepcopy(self.model)
        optimizer = optimizer_of(model, self.kind)
        optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return Twin(model, optimizer, self.kind)

    def loss(self, start: int, batch: int) -> Tensor:
        x, y = data()
        return F.mse_loss(self.model(x[start : start + batch]), y[start : start + batch])

    def step(self, start: int, batch: int, factor: float = 1.0) -> None:
        self.optimizer.param_groups[0]["lr"] = self.rate * factor
        self.optimizer.zero_grad()
        self.loss(start, batch).backward()
        self.optimizer.step()
        self.optimizer.param_groups[0]["lr"] = self.rate

    def judged(self, field: Field) -> float:
        twin = self.copy()
        twin.rate = self.rate
        start = field.training
        for step in range(field.decay):
            twin.step(start, BASE, 1 - (step + 0.5) / field.decay)
            start += BASE
        losses = [float(twin.loss(place, BASE).detach()) for place in range(start, SAMPLES, BASE)]
        return sum(losses) / len(losses)


def curve_of_twin(twin: Twin, field: Field, *, draw: int, batch: int) -> list[tuple[int, float]]:
    scale = batch // BASE
    counts = [0, 4, 8, 12, 16] if scale == 1 else [STEPS // scale, 2 * STEPS // scale]
    twin, place, done, curve = twin.copy(), draw * (field.training // 8), 0, []
    for count in counts:
        while done < count:
            if place + batch > field.training:
                place = 0
            twin.step(place, batch, scale**0.5)
            place, done = place + batch, done + 1
        curve.append((done, twin.judged(field)))
    return curve


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_branches_are_those_of_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    findings = branched(tmp_path, monkeypatch, kind=kind, after=6)
    model = network()
    twin = Twin(model, optimizer_of(model, kind), kind)
    for step in range(6):
        twin.step(step * BASE, BASE)
    field = Field.of_epoch(SAMPLES, base=BASE)
    assert {(point["draw"], point["batch"]) for point in findings["points"]} == {
        (draw, batch) for draw in (0, 1, 2) for batch in (4, 8, 16)
    }
    for draw in (0, 1, 2):
        for batch in (4, 8, 16):
            found = [p for p in findings["points"] if (p["draw"], p["batch"]) == (draw, batch)]
            expected = curve_of_twin(twin, field, draw=draw, batch=batch)
            assert [p["steps"] for p in found] == [steps for steps, _ in expected]
            assert [p["loss"] for p in found] == pytest.approx([loss for _, loss in expected], rel=1e-4)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_branches_begin_at_the_checkpoint_of_the_run_folder_and_leave_it_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    model = train(run, epochs=1, scheduled=True)
    before = files(run)
    findings = branched(tmp_path, monkeypatch, run)
    assert files(run) == before
    assert findings["at_step"] == SAMPLES // BASE + 1, "a step was made to begin with, and its weights did not move"
    (start,) = [p["loss"] for p in findings["points"] if (p["draw"], p["batch"], p["steps"]) == (0, 4, 0)]
    fresh = Twin(network(), optimizer_of(model, "sgd"), "sgd")
    assert start < 0.8 * fresh.judged(Field.of_epoch(SAMPLES, base=BASE))


def test_a_named_checkpoint_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = Rehearse(out=str(tmp_path / "out.json"), branch=True, checkpoint=str(tmp_path / "nowhere"))
    monkeypatch.setenv("SWELL_REHEARSE", order.to_json())
    with pytest.raises(CheckpointError, match="expected a run folder with a checkpoint"):
        train(None)


def test_a_data_set_that_is_too_small_is_refused_in_the_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.job.test_branching.BASE", 64)
    assert "at least 8 base batches of 64" in branched(tmp_path, monkeypatch)["refusal"]
