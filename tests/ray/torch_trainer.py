"""A driver with Ray Train's own trainer, resized while it trains: torch_trainer.py FOLDER ADDRESS."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import json
import sys
from pathlib import Path

import ray
import ray.train
from ray.train.torch import TorchConfig, TorchTrainer

import swell.ray


def train(config: dict[str, str]) -> None:
    import time
    from pathlib import Path

    import torch

    import swell
    from tests.job.scenario import Points, make_model, mean_loss

    folder = Path(config["folder"])
    notices = swell.ray.SaveBeforeResize.notices()
    job = swell.Job(folder / "run", batch=12, micro=3, rule="linear", base=6, seed=4, save=10**6, notices=notices)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.003, momentum=0.9))
    loader = job.loader(Points(130), shuffle=True)
    for _ in job.epochs(int(config["epochs"])):
        for x, y, _ in loader:
            if not (folder / "hurry").exists():
                time.sleep(0.2)
            job.backward(mean_loss(model, x, y))
            job.step()
    if job.is_main:
        weights = [value for p in model.parameters() for value in p.detach().flatten().tolist()]
        (folder / "weights.json").write_text(json.dumps(weights))
    job.close()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    ray.init(address=sys.argv[2])
    TorchTrainer(
        train,
        train_loop_config={"folder": str(folder), "epochs": sys.argv[3]},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=1.0),
        run_config=ray.train.RunConfig(
            name="ray",
            storage_path=str(folder / "storage"),
            callbacks=[swell.ray.SaveBeforeResize()],
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    ).fit()
