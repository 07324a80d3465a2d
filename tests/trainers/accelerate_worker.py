"""One worker of a run with Accelerate: the loop of Accelerate's own documentation, word for word."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from tests.trainers import tiny


def train(settings: dict[str, Any]) -> dict[str, Any]:
    """Train with these settings; the result, which the first worker also writes to ``settings["result"]``."""
    import torch
    from torch.utils.data import DataLoader

    if settings.get("plain"):
        from accelerate import Accelerator
    else:
        from swell.accelerate import Accelerator  # type: ignore[assignment]

    torch.set_num_threads(1)
    accelerator: Any = Accelerator(
        cpu=True, gradient_accumulation_steps=settings.get("accumulation", 4), **settings.get("accelerator", {})
    )
    model: Any = tiny.Regression()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    train_loader: Any = DataLoader(tiny.numbers(settings["samples"]), batch_size=settings.get("micro", 4))
    eval_loader: Any = DataLoader(tiny.numbers(21, seed=2), batch_size=4)
    scheduler: Any = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=14)
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )
    history, norms, steps = [], [], 0
    for epoch in range(2):
        model.train()
        for batch in train_loader:
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                steps += 1
                time.sleep(settings.get("sleep", 0.0))
                if "heard" in settings:
                    note = {"step": accelerator.job.steps, "pid": os.getpid(), "replicas": accelerator.job.replicas}
                    with open(settings["heard"], "a") as file:
                        file.write(json.dumps(note) + "\n")
                if settings.get("save_at") == steps:
                    accelerator.save_state()
        model.eval()
        errors = []
        for batch in eval_loader:
            with torch.no_grad():
                error = (model(batch["x"])["logits"] - batch["labels"]) ** 2
            errors.append(accelerator.gather_for_metrics(error))
        total = torch.cat(errors)
        history.append({"epoch": epoch, "error": float(total.mean()), "rows": len(total), "steps": steps})
    result = {
        "digest": tiny.digest(accelerator.unwrap_model(model)), "history": history, "lr": scheduler.get_last_lr()[0],
        "norms": [float(norm) for norm in norms], "first": accelerator.is_main_process, "length": len(train_loader),
    }  # fmt: skip
    if "result" in settings and accelerator.is_main_process:
        Path(settings["result"]).write_text(json.dumps(result))
    accelerator.end_training()
    return result
