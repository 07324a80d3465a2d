"""What a Lightning user switches on works inside a run, on one worker and on two, and survives a resume."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

import swell
import swell.lightning
from swell.errors import ConfigError
from tests.lightning.scenario import data, make_module, train_with_lightning, weights_of
from tests.workers import run_processes


class Hooks(Callback):
    """Counts the hooks around steps, and looks at the gradient there."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.norms: list[float] = []
        self.ranks: set[int] = set()

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def on_train_epoch_start(self, *_: Any) -> None:
        self._count("epoch start")

    def on_train_epoch_end(self, *_: Any) -> None:
        self._count("epoch end")

    def on_before_backward(self, *_: Any) -> None:
        self._count("before backward")

    def on_after_backward(self, *_: Any) -> None:
        self._count("after backward")

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        self.norms.append(float(torch.nn.utils.get_total_norm(gradients)))

    def on_train_batch_end(self, *_: Any) -> None:
        self._count("batch end")


def with_callbacks(folder: str) -> dict[str, Any]:
    hooks, stopping = Hooks(), EarlyStopping("loss", patience=1, min_delta=10.0, check_on_train_epoch_end=True)
    best = ModelCheckpoint(Path(folder) / "best", monitor="validation", save_top_k=1, filename="{step}")
    weights, trainer = train_with_lightning(
        100,
        micro=4,
        strategy=swell.lightning.Strategy(batch=16),
        callbacks=[hooks, stopping, best],
        enable_checkpointing=True,
        logger=CSVLogger(folder, name="logs", version=0),
        log_every_n_steps=2,
        max_epochs=5,
    )
    return {
        "weights": weights,
        "counts": hooks.counts,
        "norms": hooks.norms,
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
        "best": best.best_model_path,
    }


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "logs" / "version_0" / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.distributed
def test_callbacks_loggers_checkpoints_and_early_stopping_agree_on_one_worker_and_two(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    alone = with_callbacks(str(one))
    together = run_processes(2, with_callbacks, str(two), timeout_s=200)
    assert alone["epochs"] == 2 and alone["steps"] == 14  # stopped early, after two of five epochs of 7 steps
    for answer in together:
        assert answer["weights"] == pytest.approx(alone["weights"], rel=1e-12)
        assert (answer["epochs"], answer["steps"]) == (2, 14)
        assert answer["norms"] == pytest.approx(alone["norms"], rel=1e-12)  # of the whole step's gradient
        assert answer["counts"]["epoch start"] == answer["counts"]["epoch end"] == 2
    assert alone["counts"]["before backward"] == alone["counts"]["after backward"] == 2 * 25
    assert [path.name for path in (two / "best").iterdir()] == [path.name for path in (one / "best").iterdir()]
    steps = [row["step"] for row in rows_of(two) if row["loss"]]
    assert steps == [row["step"] for row in rows_of(one) if row["loss"]] == [str(n) for n in range(1, 14, 2)]
    validated = [(row["step"], pytest.approx(float(row["validation"]))) for row in rows_of(one) if row["validation"]]
    assert [(row["step"], float(row["validation"])) for row in rows_of(two) if row["validation"]] == validated


def test_the_best_checkpoint_loads_into_plain_lightning_and_predicts(tmp_path: Path) -> None:
    best = ModelCheckpoint(tmp_path, monitor="validation")
    strategy = swell.lightning.Strategy(batch=16)
    weights, trainer = train_with_lightning(96, micro=8, strategy=strategy, callbacks=[best], enable_checkpointing=True)
    loader = DataLoader(data(20), batch_size=7)
    predicted = torch.cat(trainer.predict(trainer.lightning_module, loader))  # type: ignore[arg-type]
    assert predicted.shape == (20, 1)
    (validated,) = trainer.validate(trainer.lightning_module, loader, verbose=False)
    assert validated["validation"] == pytest.approx(trainer.lightning_module.validated[-1][1])
    plain = lightning.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    module = make_module()
    again = torch.cat(plain.predict(module, loader, ckpt_path=best.best_model_path))  # type: ignore[arg-type]
    saved = torch.load(best.best_model_path, weights_only=False)
    assert saved["global_step"] in (6, 12, 18) and saved["state_dict"].keys() == module.state_dict().keys()
    if saved["global_step"] == 18:
        torch.testing.assert_close(again, predicted)
        assert weights_of(module) == weights


@pytest.mark.parametrize(("interval", "at"), [(4, [4, 8, 12, 16, 18]), (0.5, [3, 6, 9, 12, 15, 18])])
def test_validation_comes_after_a_number_of_steps_whatever_the_micro_batch(interval: Any, at: list[int]) -> None:
    strategy = swell.lightning.Strategy(batch=16)
    _, trainer = train_with_lightning(96, micro=4, strategy=strategy, val_check_interval=interval)
    steps = [step for step, _ in trainer.lightning_module.validated]
    assert sorted(set(steps)) == sorted({*at, 6, 12, 18})


def test_a_policy_moves_the_batch_and_the_schedule_keeps_its_meaning() -> None:
    policy = swell.Schedule([(0, 16), (64, 32)], unit="samples")
    strategy = swell.lightning.Strategy(batch=policy, rule="linear")
    _, trainer = train_with_lightning(96, micro=8, strategy=strategy, decay="progress")
    assert trainer.global_step == strategy.job.steps < 18
    assert strategy.job.progress == pytest.approx(18)
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.01)


def test_a_finished_run_is_not_trained_again_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    def run(epochs: int) -> tuple[list[float], Any]:
        strategy = swell.lightning.Strategy(tmp_path / "run", batch=16)
        return train_with_lightning(96, micro=8, strategy=strategy, max_epochs=epochs, decay="epoch")

    weights, first = run(2)
    again, second = run(2)
    assert again == weights and second.global_step == first.global_step == 12
    longer, third = run(3)
    assert third.global_step == 18 and third.current_epoch == 3
    straight, _ = train_with_lightning(96, micro=8, strategy=swell.lightning.Strategy(batch=16), decay="epoch")
    assert longer == pytest.approx(straight, rel=1e-13)


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_a_precision_gives_what_it_gives_in_plain_lightning(precision: Any) -> None:
    plain, _ = train_with_lightning(96, micro=16, precision=precision)
    strategy = swell.lightning.Strategy(batch=16)
    weights, _ = train_with_lightning(96, micro=16, strategy=strategy, precision=precision)
    assert weights == pytest.approx(plain, rel=1e-13)


def counted() -> tuple[float, float]:
    import torchmetrics

    class Counting(type(make_module())):
        def __init__(self) -> None:
            super().__init__()
            self.count = torchmetrics.SumMetric()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            self.count.update(len(batch[0]))

        def on_validation_epoch_end(self) -> None:
            self.total = float(self.count.compute())
            self.count.reset()

    strategy = swell.lightning.Strategy(batch=16)
    _, trainer = train_with_lightning(48, micro=4, strategy=strategy, module_of=lambda **_: Counting())
    return trainer.lightning_module.total, float(trainer.callback_metrics["validation"])


@pytest.mark.distributed
def test_every_worker_validates_every_sample_and_counts_it_once() -> None:
    alone = counted()
    assert alone[0] == 20
    assert run_processes(2, counted, timeout_s=200) == [pytest.approx(alone)] * 2


def test_one_strategy_holds_one_run() -> None:
    strategy = swell.lightning.Strategy(batch=16)
    _, trainer = train_with_lightning(48, micro=8, strategy=strategy)
    with pytest.raises(ConfigError, match="the strategy has trained already; expected a new one"):
        trainer.fit(make_module(), DataLoader(data(48), batch_size=8))
