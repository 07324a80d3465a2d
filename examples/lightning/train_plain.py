"""A small network on the digits of swell; train_plain.py and train_swell.py differ in what swell needs."""

import argparse
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from swell.demo.digits import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset


class Digits(lightning.LightningModule):
    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(pixels, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        self.log("validation loss", F.cross_entropy(self.network(batch[0]), batch[1]), prog_bar=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--limit", type=int, default=1400, help="use only this many images")
    args = parser.parse_args()

    torch.manual_seed(0)
    (x, y), (test_x, test_y) = (data.tensors for data in load_digits())
    train_set = Subset(TensorDataset(x.flatten(1), y), range(min(args.limit, len(x))))
    test_set = TensorDataset(test_x.flatten(1), test_y)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint("runs/best", monitor="validation loss"), EarlyStopping("validation loss")],
        logger=False,
    )
    loaders = DataLoader(train_set, batch_size=32, shuffle=True), DataLoader(test_set, batch_size=400)
    trainer.fit(Digits(test_x[0].numel()), *loaders)
    return trainer.callback_metrics["validation loss"].item()


if __name__ == "__main__":
    main()
