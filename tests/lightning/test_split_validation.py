"""Validation that is split over the workers gives each of them the figures of one worker that validates everything."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import Callback, EarlyStopping
from torch.utils.data import DataLoader

import swell.lightning
from swell.errors import ConfigError
from tests.lightning.scenario import data, loss_of, make_module, train_with_lightning
from tests.supervisor.supervised import SupervisedRun
from tests.workers import run_processes

SCRIPT = Path(__file__).parent / "validation_script.py"
BATCHES = 3  # of the validation data: 20 samples in batches of 7, 7 and 6


def figured_module(**options: Any) -> Any:
    """Logs one figure of each kind, and keeps metrics of each kind."""

    class Figured(type(make_module())):
        def __init__(self) -> None:
            super().__init__()
            self.decay, self.seen = options.get("decay"), []
            self.error = torchmetrics.MeanSquaredError()
            self.order = torchmetrics.SpearmanCorrCoef()  # keeps every prediction
            self.fit = torchmetrics.PearsonCorrCoef()  # has a way of its own to join states
            self.both = torchmetrics.MetricCollection([torchmetrics.MeanAbsoluteError(), torchmetrics.R2Score()])
            self.trained = torchmetrics.SumMetric()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.trained.update(len(batch[0]))
            return super().training_step(batch, batch_idx)

        def on_validation_epoch_start(self) -> None:
            self.log("begun", 2.0, reduce_fx="sum")

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.seen.append(batch_idx)
            predicted, target = self.model(batch[0]).flatten(), batch[1].flatten()
            super().validation_step(batch, batch_idx)
            self.log("synced", loss_of(self.model, batch), on_step=True, on_epoch=True, sync_dist=True)
            self.log("rows", float(len(target)), reduce_fx="sum")
            self.log("highest", predicted.max(), reduce_fx="max")
            self.log("lowest", predicted.min(), reduce_fx="min", prog_bar=True)
            self.error(predicted, target)
            self.log("error", self.error)
            self.order.update(predicted, target)
            self.fit.update(predicted, target)
            self.fit.compute()  # a value so far, which must not be taken for the last one
            self.both.update(predicted, target)
            self.log_dict(self.both)

        def on_validation_epoch_end(self) -> None:
            super().on_validation_epoch_end()
            self.log("order", self.order.compute())
            self.log("fit", self.fit.compute())
            self.order.reset()
            self.fit.reset()

    return Figured()


class Figures(Callback):
    """What callbacks see at the end of each validation, and which batches this worker has computed for it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.batches: list[list[int]] = []

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
            self.rows.append({name: figures[name] for name in figures.keys() - {"loss"}})
            self.batches.append(module.seen)
        module.seen = []


def validated(validation: str, samples: int = 96, **options: Any) -> tuple[Any, ...]:
    figures, stopping = Figures(), EarlyStopping("validation", patience=1, min_delta=10.0)
    weights, trainer = train_with_lightning(
        samples,
        micro=4,
        strategy=swell.lightning.Strategy(batch=16, validation=validation),
        module_of=figured_module,
        callbacks=[figures, stopping],
        max_epochs=4,
        **options,
    )
    return (
        weights,
        figures.rows,
        figures.batches,
        trainer.current_epoch,
        float(trainer.lightning_module.trained.compute()),
    )


@pytest.mark.distributed
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"decay": "plateau", "val_check_interval": 4}], ids=str)
def test_every_worker_has_the_figures_of_one_and_every_batch_is_computed_once(
    workers: int, options: dict[str, Any]
) -> None:
    weights, rows, batches, epochs, trained = validated("whole", **options)
    assert len(rows) == 2 and all(each == list(range(BATCHES)) for each in batches)
    assert rows[0].keys() >= {"validation", "synced", "rows", "error", "order", "fit", "R2Score", "begun"}
    results = run_processes(workers, _validated_split, options, timeout_s=200)
    for other, other_rows, _, other_epochs, _ in results:
        assert other == pytest.approx(weights, rel=1e-12) and other_epochs == epochs
        assert other_rows == [pytest.approx(row, rel=1e-6) for row in rows]  # the metrics are in float32
        assert [row["validation"] for row in other_rows] == pytest.approx(
            [row["validation"] for row in rows], rel=1e-12
        )
    for parts in zip(*(result[2] for result in results), strict=True):
        assert sorted(number for part in parts for number in part) == list(range(BATCHES))
    assert sum(result[4] for result in results) == trained  # a metric of the training is not touched


def _validated_split(options: dict[str, Any]) -> tuple[Any, ...]:
    return validated("split", **options)


@pytest.mark.distributed
def test_it_is_whole_where_there_are_fewer_batches_than_workers() -> None:
    _, rows, *_ = validated("whole")
    for _, other_rows, batches, *_ in run_processes(5, _validated_split, {"samples": 96}, timeout_s=300):
        assert other_rows == [pytest.approx(row, rel=1e-6) for row in rows]
        assert all(each == list(range(BATCHES)) for each in batches)


@pytest.mark.distributed
def test_it_is_whole_after_a_step_in_which_a_worker_had_no_sample() -> None:
    _, rows, *_ = validated("whole", 97)
    for _, other_rows, batches, *_ in run_processes(2, _validated_split, {"samples": 97}, timeout_s=200):
        assert other_rows == [pytest.approx(row, rel=1e-6) for row in rows]
        assert all(each == list(range(BATCHES)) for each in batches)


def refused(kind: str) -> str:
    class Odd(type(make_module())):
        def __init__(self) -> None:
            super().__init__()
            self.outputs: list[float] = []
            self.kept = torchmetrics.SumMetric() if kind == "kept" else _MeanOfMeans()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            self.outputs.append(float(loss_of(self.model, batch)))
            if kind in ("kept", "mean"):
                self.kept.update(1.0)
            if kind == "first" and batch_idx == 0:
                self.log("first", 1.0)

        def on_validation_epoch_end(self) -> None:
            if kind == "own":
                self.log("own", sum(self.outputs) / len(self.outputs))

    strategy = swell.lightning.Strategy(batch=16, validation="split")
    with pytest.raises(ConfigError) as error:
        train_with_lightning(48, micro=4, strategy=strategy, module_of=lambda **_: Odd())
    return str(error.value)


class _MeanOfMeans(torchmetrics.Metric):
    def __init__(self) -> None:
        super().__init__()
        self.add_state("mean", torch.tensor(0.0), dist_reduce_fx="mean")

    def update(self, value: float) -> None:
        self.mean = torch.tensor(value)

    def compute(self) -> torch.Tensor:
        return self.mean


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("own", "own is .* on one worker and .* on another; expected one figure"),
        ("first", "some workers only have logged validation_step.first; expected"),
        ("mean", "the metric kept is a _MeanOfMeans, whose parts do not give the whole"),
        ("kept", "the metric kept held values when the validation began; expected it empty"),
    ],
)
def test_a_figure_that_parts_do_not_give_is_refused_on_every_worker(kind: str, words: str) -> None:
    for message in run_processes(2, refused, kind, timeout_s=200):
        assert re.search(words, message), message


def test_an_unknown_way_to_validate_is_refused() -> None:
    with pytest.raises(ConfigError, match="validation is 'half'; expected 'whole' or 'split'"):
        swell.lightning.Strategy(batch=16, validation="half")


def shuffled() -> list[list[int]]:
    class Seen(type(make_module())):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            self.numbers = [*getattr(self, "numbers", []), len(batch[0])]

    import lightning

    module = Seen()
    trainer = lightning.Trainer(
        accelerator="cpu", strategy=swell.lightning.Strategy(batch=16, validation="split"), max_epochs=1,
        logger=False, enable_progress_bar=False, enable_checkpointing=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(module, DataLoader(data(48), batch_size=4), DataLoader(data(20), batch_size=7, shuffle=True))
    return module.numbers


@pytest.mark.distributed
def test_a_loader_that_shuffles_is_read_whole() -> None:
    assert run_processes(2, shuffled, timeout_s=200) == [[7, 7, 6]] * 2


def figures_of(folder: Path) -> dict[int, list[dict[str, float]]]:
    """What every worker has found at each step."""
    rows: dict[int, list[dict[str, float]]] = {}
    for line in (folder / "figures.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows.setdefault(row["step"], []).append(row)
    return rows


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("validation", ["whole", "split"])
def test_a_worker_that_is_lost_and_one_that_joins_in_a_validation_change_no_figure(
    tmp_path: Path, validation: str
) -> None:
    alone, moved = tmp_path / "alone", tmp_path / "moved"
    alone.mkdir()
    moved.mkdir()
    done = subprocess.run([sys.executable, str(SCRIPT), str(alone), "whole"], timeout=300, check=False)
    assert done.returncode == 0
    (moved / "wait").touch()
    with SupervisedRun.of(moved, "--workers", "3", str(SCRIPT), str(moved), validation) as run:
        run.wait_for(lambda: len(list(moved.glob("validates-*"))) == 3, timeout_s=200)
        members = {worker["pid"]: worker["member"] for worker in run.status()["workers"]}
        os.kill(max(members, key=lambda pid: members[pid]), signal.SIGKILL)
        run.wait_for(lambda: len(list(moved.glob("fits-*"))) == 4, timeout_s=200)
        time.sleep(3)  # the one that was started for it waits to join
        (moved / "go").touch()
        assert run.end(timeout_s=300) == 0, run.terminal()
    assert len(list(moved.glob("fits-*"))) == 4, run.terminal()
    expected, found = figures_of(alone), figures_of(moved)
    assert expected.keys() == found.keys() == {6, 12, 18, 24}
    for step, rows in found.items():
        assert len(rows) == (2 if step == 12 else 3)
        for row in rows:
            assert row["validation"] == pytest.approx(expected[step][0]["validation"], rel=1e-12)
            assert row["error"] == pytest.approx(expected[step][0]["error"], rel=1e-6)
        if validation == "split":
            assert sum(row["batches"] for row in rows) == (12 if step == 12 else 6)
    assert json.loads((moved / "weights.json").read_text()) == pytest.approx(
        json.loads((alone / "weights.json").read_text()), rel=1e-12
    )
