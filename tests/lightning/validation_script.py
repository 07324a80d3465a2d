"""A Lightning user's script whose validation takes long; figures and the weights at the end are written down."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import lightning
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader

import swell.lightning
from tests.lightning.scenario import data, make_module, weights_of

folder = Path(sys.argv[1])
options: dict[str, Any] = {} if sys.argv[2] == "whole" else {"validation": sys.argv[2]}


class Slow(type(make_module())):
    """Waits in its second validation, where ``wait`` is there, until ``go`` is."""

    def __init__(self) -> None:
        super().__init__()
        self.error, self.batches = torchmetrics.MeanSquaredError(), 0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.error(self.model(batch[0]), batch[1])
        self.log("error", self.error)
        self.batches += 1
        if self.trainer.global_step == 12 and (folder / "wait").exists():
            (folder / f"validates-{os.getpid()}").touch()
            while not (folder / "go").exists():
                time.sleep(0.05)

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        figures = {name: float(self.trainer.callback_metrics[name]) for name in ("validation", "error")}
        row = {"step": self.trainer.global_step, "batches": self.batches, "pid": os.getpid(), **figures}
        if not self.trainer.sanity_checking:
            with (folder / "figures.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
        self.batches = 0


module = Slow()
trainer = lightning.Trainer(
    accelerator="cpu",
    strategy=swell.lightning.Strategy(folder / "run", batch=16, seed=4, **options),
    max_epochs=4,
    callbacks=[ModelCheckpoint(folder / "best", monitor="validation"), EarlyStopping("error", patience=100)],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
(folder / f"fits-{os.getpid()}").touch()
trainer.fit(module, DataLoader(data(96), batch_size=4, shuffle=True), DataLoader(data(40), batch_size=7))
if trainer.is_global_zero:
    (folder / "weights.json").write_text(json.dumps(weights_of(module)))
