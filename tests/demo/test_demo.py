"""The demo: what it trains on, what it shows, what it leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from swell.cli import main
from swell.core.events import Event, Stepped
from swell.demo import ELASTIC, DemoResult, show, training
from swell.demo.digits import load_digits
from swell.demo.proof import Claim
from swell.demo.training import Result, Way, ways
from swell.telemetry import read_events


class Losses:
    """A sink that keeps the loss of each step."""

    def __init__(self) -> None:
        self.losses: list[float | None] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, Stepped):
            self.losses.append(event.loss)

    def close(self) -> None:
        pass


def test_every_digit_is_either_trained_on_or_judged_by() -> None:
    train_set, test_set = load_digits()
    assert (len(train_set), len(test_set)) == (1438, 359)
    images, labels = train_set.tensors
    assert (images.min(), images.max()) == (0, 1)
    assert torch.equal(labels.unique(), torch.arange(10))


@pytest.mark.parametrize("way", ways().values(), ids=list(ways()))
def test_the_same_seed_gives_the_same_run(way: Way, tmp_path: Path) -> None:
    sinks = [Losses(), Losses()]
    results = [
        training.train(tmp_path / str(index), way, seed=3, epochs=1, sinks=[sink]) for index, sink in enumerate(sinks)
    ]
    assert results[0] == results[1]
    assert sinks[0].losses == sinks[1].losses


@pytest.mark.slow
@pytest.mark.distributed
def test_the_elastic_run_lives_through_everything_and_uses_every_sample_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "events.jsonl").write_text("of an earlier demo\n")
    shown = show(tmp_path, epochs=2)
    text = capsys.readouterr().out
    happened, once, _ = shown.claims
    assert happened.holds and once.holds, text
    assert "workers: 1 → 2 → 1 → 2" in text and "2 epochs of 1,438 samples" in text
    assert all(name in text for name in (*ways(), ELASTIC))
    assert "\x1b" not in text
    assert shown.results[ELASTIC].samples == 2 * 1438
    assert shown.report.stat().st_size > 100_000
    for picture in shown.pictures:
        assert picture.stat().st_size > 10_000
    for folder in ("small", "large", "swell", "elastic"):
        assert any(isinstance(event, Stepped) for event in read_events(tmp_path / folder / "events.jsonl"))


@pytest.mark.parametrize("holds", [True, False])
def test_the_command_fails_if_a_claim_does_not_hold(
    holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Result(accuracy=1.0, steps=1, samples=1)
    shown = DemoResult(
        results={"swell": result}, claims=[Claim("a", True), Claim("b", holds)], pictures=[], report=Path("report.html")
    )
    monkeypatch.setattr("swell.demo.show", lambda out, *, seed: shown)
    assert main(["demo", "--out", str(tmp_path)]) == (0 if holds else 1)
