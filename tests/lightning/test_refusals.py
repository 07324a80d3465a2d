"""What cannot be right is refused before anything is trained, with the reason and the way out."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning
import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.plugins import Precision
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

import swell
import swell.lightning
from swell.errors import ConfigError, LoopError
from tests.lightning.scenario import data, loss_of, make_model, make_module, train_with_lightning


class ForeignPrecision(Precision):
    pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate_grad_batches": 4}, "accumulate_grad_batches is 4; expected 1"),
        ({"overfit_batches": 2}, "overfit_batches is 2; expected 0"),
        ({"limit_train_batches": 3}, "limit_train_batches is 3; expected to train on whole epochs"),
        ({"fast_dev_run": True}, "fast_dev_run is True; expected to train on whole epochs"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs is 1; expected 0"),
        ({"callbacks": [GradientAccumulationScheduler({0: 2})]}, "GradientAccumulationScheduler; expected none"),
        ({"callbacks": [StochasticWeightAveraging(1e-2)]}, "StochasticWeightAveraging; expected none"),
        ({"sync_batchnorm": True}, "sync_batchnorm is True; expected False"),
        ({"plugins": [ForeignPrecision()]}, "precision plugin is a ForeignPrecision; expected 32"),
        ({"devices": 2}, "devices is 2; expected 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_of_the_trainer_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_with_lightning(32, micro=8, strategy=swell.lightning.Strategy(batch=16), **options)


def changed(change: Callable[[type], None]) -> Callable[..., Any]:
    def module_of(**options: Any) -> Any:
        module = make_module(**options)
        change(type(module))
        return module

    return module_of


def manual(kind: Any) -> None:
    kind.automatic_optimization = property(lambda self: False, lambda self, value: None)


def two_optimizers(kind: Any) -> None:
    kind.configure_optimizers = lambda self: [torch.optim.SGD(self.parameters(), 0.1) for _ in range(2)]


def own_backward(kind: Any) -> None:
    kind.backward = lambda self, loss: loss.backward()


def no_loss(kind: Any) -> None:
    kind.training_step = lambda self, batch: None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (manual, "automatic_optimization is False; expected True.*Write the loop with Fabric"),
        (own_backward, "overrides backward, which is not called"),
        (no_loss, "training_step returned None; expected a loss"),
    ],
)
def test_modules_that_step_by_themselves_are_refused(change: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_with_lightning(32, micro=8, strategy=swell.lightning.Strategy(batch=16), module_of=changed(change))


def test_several_optimizers_are_refused_by_lightning_itself() -> None:
    strategy = swell.lightning.Strategy(batch=16)
    with pytest.raises(RuntimeError, match="multiple optimizers"):
        train_with_lightning(32, micro=8, strategy=strategy, module_of=changed(two_optimizers))


def test_a_part_of_an_epoch_is_no_interval_while_the_batch_moves() -> None:
    strategy = swell.lightning.Strategy(batch=swell.Ramp(8, 16, over=64, unit="samples"))
    with pytest.raises(ConfigError, match=r"val_check_interval is 0.5; expected 1.0, a number of steps or a time"):
        train_with_lightning(64, micro=8, strategy=strategy, val_check_interval=0.5)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(data(32))


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(Stream(), batch_size=4), "IterableDataset; expected a data set with a length"),
        (
            DataLoader(data(32), batch_sampler=BatchSampler(SequentialSampler(range(32)), 4, False)),
            "batch_size None and a BatchSampler",
        ),
        (DataLoader(data(32), batch_size=None), "batch_size None"),
        ([DataLoader(data(32), batch_size=4), DataLoader(data(32), batch_size=4)], "a second training loader"),
    ],
    ids=["stream", "batch sampler", "no batch size", "two loaders"],
)
def test_loaders_whose_batches_cannot_be_resized_are_refused(loader: Any, message: str) -> None:
    strategy = swell.lightning.Strategy(batch=16)
    trainer = lightning.Trainer(
        accelerator="cpu", strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False
    )
    with pytest.raises(ConfigError, match=message):
        trainer.fit(make_module(), loader)


def fabric_of(**options: Any) -> tuple[Any, Any]:
    strategy = swell.lightning.Strategy(batch=16, **options)
    fabric = Fabric(accelerator="cpu", strategy=strategy)
    fabric.launch()
    return fabric, strategy


def test_fabric_takes_one_optimizer() -> None:
    fabric, _ = fabric_of()
    model = make_model()
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for _ in range(2)]
    with pytest.raises(ConfigError, match="2 optimizers were given to fabric"):
        fabric.setup(model, *optimizers)


def test_epochs_before_there_is_data_are_refused() -> None:
    _, strategy = fabric_of()
    with pytest.raises(LoopError, match=r"no job yet; expected the training data first.*fabric.setup_dataloaders"):
        next(strategy.epochs(1))


def test_a_plain_backward_is_refused_by_fabric_itself() -> None:
    fabric, strategy = fabric_of()
    model = make_model()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    loader = fabric.setup_dataloaders(DataLoader(data(32), batch_size=8))
    for _ in strategy.epochs(1):
        for batch in loader:
            with pytest.raises(RuntimeError, match=r"fabric.backward"):
                loss_of(model, batch).backward()
            fabric.backward(loss_of(model, batch))
            optimizer.step()


@pytest.mark.parametrize(("schedule", "inside"), [("epoch", True), ("progress", False)])
def test_a_scheduler_that_is_stepped_at_the_other_place_is_refused(schedule: str, inside: bool) -> None:
    fabric, strategy = fabric_of(schedule=schedule)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, scheduler = fabric.setup(model, optimizer, scheduler=scheduler)
    loader = fabric.setup_dataloaders(DataLoader(data(32), batch_size=8))
    other = "progress" if inside else "epoch"
    with pytest.raises(ConfigError, match=f"schedule is '{schedule}'.*schedule='{other}'"):
        for _ in strategy.epochs(1):
            for batch in loader:
                fabric.backward(loss_of(model, batch))
                optimizer.step()
                if inside:
                    scheduler.step()
            scheduler.step()
