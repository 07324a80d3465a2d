"""The demo: what it trains on, what it shows, what it leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from swell.cli import main
from swell.core.events import Event, Stepped
from swell.demo import training, ways
from swell.demo.digits import load_digits
from swell.telemetry import read_events


class Losses:
    """A sink that keeps what each step lost."""

    def __init__(self) -> None:
        self.seen: list[float | None] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, Stepped):
            self.seen.append(event.loss)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "EPOCHS", 1)


def test_every_digit_is_either_trained_on_or_judged_by() -> None:
    train_set, test_set = load_digits()
    assert (len(train_set), len(test_set)) == (1438, 359)
    images, labels = train_set.tensors
    assert (images.min(), images.max()) == (0, 1)
    assert torch.equal(labels.unique(), torch.arange(10))


@pytest.mark.parametrize("name", ways())
def test_the_same_seed_gives_the_same_run(name: str, tmp_path: Path) -> None:
    way, sinks = ways()[name], [Losses(), Losses()]
    results = [
        training.train(tmp_path / str(index), batch=way.batch, rule=way.rule, micro=way.micro, seed=3, sink=sink)
        for index, sink in enumerate(sinks)
    ]
    assert results[0] == results[1]
    assert sinks[0].seen == sinks[1].seen


def test_the_command_shows_and_draws_three_runs_and_starts_anew_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for _ in range(2):
        assert main(["demo", "--out", str(tmp_path)]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert all(name in shown[0] for name in ways())
    assert "\x1b" not in shown[0]
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    for way in ways().values():
        assert any(isinstance(event, Stepped) for event in read_events(tmp_path / way.folder / "events.jsonl"))
