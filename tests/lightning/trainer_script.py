"""A Lightning user's script for elastic runs; the weights at the end are written down."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

import swell.lightning
from tests.lightning.scenario import data, make_module, weights_of

folder, epochs = Path(sys.argv[1]), int(sys.argv[2])


class Steps(Callback):
    """Writes down every step on the worker that may write."""

    def __init__(self) -> None:
        self.rows = (folder / f"steps-{os.getpid()}.jsonl").open("a", buffering=1)
        self.latest = 0

    def on_train_batch_start(self, *_: Any) -> None:
        time.sleep(0.3 if (folder / "slow").exists() else 0.0)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        job = trainer.strategy.job
        if trainer.is_global_zero and job.steps > self.latest and trainer.global_step == job.steps:
            row = {"step": job.steps, "epoch": trainer.current_epoch, "workers": job.replicas}
            self.rows.write(json.dumps(row) + "\n")
        self.latest = job.steps

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        self.latest = trainer.strategy.job.steps


module = make_module(decay="progress", optimizer_of=lambda parameters, lr: torch.optim.SGD(parameters, lr, 0.9))
best = ModelCheckpoint(folder / "best", monitor="validation", save_top_k=2)
trainer = lightning.Trainer(
    accelerator="cpu",
    strategy=swell.lightning.Strategy(folder / "run", batch=12, seed=4),
    max_epochs=epochs,
    gradient_clip_val=0.5,
    callbacks=[Steps(), best, EarlyStopping("validation", patience=100)],
    logger=CSVLogger(folder, name="logs", version=0),
    log_every_n_steps=5,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, DataLoader(data(130), batch_size=3, shuffle=True), DataLoader(data(20), batch_size=7))
if trainer.is_global_zero:
    (folder / "weights.json").write_text(json.dumps(weights_of(module)))
