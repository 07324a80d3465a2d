"""The training of tests/machines/training.py under Ray Train's elastic trainer: ray_train_elastic.py FOLDER ADDRESS."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import sys

import ray
import ray.train
from ray.train.torch import TorchConfig, TorchTrainer

import swell.ray


def train(config: dict[str, str]) -> None:
    import json
    import os
    import time
    from pathlib import Path

    import torch

    import swell
    from tests.job.scenario import Points, make_model, mean_loss

    folder = Path(config["folder"])
    cadence = swell.Cadence(every_steps=20)
    notices = swell.ray.SaveBeforeResize.notices()
    job = swell.Job(folder / "run", batch=12, micro=3, rule="linear", base=6, seed=4, save=cadence, notices=notices)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.003, momentum=0.9))
    loader = job.loader(Points(130), shuffle=True)
    with (folder / f"steps-{os.getpid()}.jsonl").open("a", buffering=1) as log:
        for _ in job.epochs(100000):
            for x, y, _ in loader:
                time.sleep(0.02)
                job.backward(mean_loss(model, x, y))
                if job.step():
                    log.write(json.dumps({"time": time.time(), "replicas": job.replicas}) + "\n")


if __name__ == "__main__":
    folder = sys.argv[1]
    ray.init(address=sys.argv[2])
    TorchTrainer(
        train,
        train_loop_config={"folder": folder},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=1.0),
        run_config=ray.train.RunConfig(
            name="ray",
            storage_path=f"{folder}/storage",
            callbacks=[swell.ray.SaveBeforeResize()],
            failure_config=ray.train.FailureConfig(max_failures=1000),
        ),
    ).fit()
