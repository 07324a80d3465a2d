"""A small regression in float64, trained by plain Fabric or Lightning and by swell inside of them."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3


def data(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 5, generator=generator, dtype=torch.float64)
    noise = torch.randn(samples, 1, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x[:, :1] * x[:, 1:2] + 0.1 * noise)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def loss_of(model: Callable[[Tensor], Tensor], batch: Any) -> Tensor:
    x, y = batch
    return (model(x) - y).square().mean()


def weights_of(model: nn.Module) -> list[float]:
    return [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]


def train_with_fabric(
    samples: int,
    *,
    micro: int,
    strategy: Any = "auto",
    clip: float | None = None,
    decay: str | None = None,
    optimizer_of: Callable[..., Any] = torch.optim.SGD,
    **fabric_options: Any,
) -> list[float]:
    """The weights after a loop that any Fabric user might have written."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", strategy=strategy, **fabric_options)
    fabric.launch()
    model = make_model()
    optimizer = optimizer_of(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7 if decay == "progress" else 1, gamma=0.7)
    model, optimizer, scheduler = fabric.setup(model, optimizer, scheduler=scheduler)
    loader = fabric.setup_dataloaders(DataLoader(data(samples), batch_size=micro))
    epochs: Iterator[int] = iter(range(EPOCHS)) if strategy == "auto" else strategy.epochs(EPOCHS)
    for _ in epochs:
        for batch in loader:
            optimizer.zero_grad()
            fabric.backward(loss_of(model, batch))
            if clip is not None:
                fabric.clip_gradients(model, optimizer, max_norm=clip)
            optimizer.step()
            if decay == "progress":
                scheduler.step()
        if decay == "epoch":
            scheduler.step()
    return weights_of(model)


def train_with_lightning(
    samples: int,
    *,
    micro: int,
    strategy: Any = "auto",
    decay: str | None = None,
    optimizer_of: Callable[..., Any] = torch.optim.SGD,
    shuffle: bool = False,
    sampler: Any | None = None,
    module_of: Callable[..., Any] | None = None,
    **trainer_options: Any,
) -> tuple[list[float], Any]:
    """The weights after ``Trainer.fit``, and the trainer."""
    import lightning

    module = (module_of or make_module)(decay=decay, optimizer_of=optimizer_of)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet = {"enable_checkpointing": False, "max_epochs": EPOCHS, **quiet}
    trainer = lightning.Trainer(accelerator="cpu", strategy=strategy, **{**quiet, **trainer_options})
    trainer.fit(
        module,
        DataLoader(data(samples), batch_size=micro, shuffle=shuffle, sampler=sampler),
        DataLoader(data(20), batch_size=7),
    )
    return weights_of(module), trainer


def make_module(*, decay: str | None = None, optimizer_of: Callable[..., Any] = torch.optim.SGD) -> Any:
    import lightning

    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()
            self.validated: list[tuple[int, float]] = []

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = loss_of(self.model, batch)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("validation", loss_of(self.model, batch), on_epoch=True)

        def on_validation_epoch_end(self) -> None:
            if not self.trainer.sanity_checking:
                self.validated.append((self.trainer.global_step, float(self.trainer.callback_metrics["validation"])))

        def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.model(batch[0])

        def configure_optimizers(self) -> Any:
            optimizer = optimizer_of(self.parameters(), lr=0.1)
            if decay is None:
                return optimizer
            if decay == "plateau":
                scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1, threshold=0.5)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "validation"}}
            if decay == "progress":
                total = self.trainer.estimated_stepping_batches
                scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=int(total))
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)]

    return Regression()
