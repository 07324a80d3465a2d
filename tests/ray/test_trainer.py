"""``swell.ray.Trainer``: Ray Train's arguments and result, on workers that are resized in place."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.train

import swell.ray
from swell.core.events import EpochEnded
from swell.errors import ConfigError
from swell.telemetry.log import read_events
from tests.docs.pages import ROOT, blocks
from tests.ray.ray_cluster import RayNodes

KEEP_ONE = ray.train.CheckpointConfig(num_to_keep=1)
TWO = ray.train.ScalingConfig(num_workers=(2, 4))


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    cluster = RayNodes()
    cluster.keep(2)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.close()


def run_config(folder: Path, **options: Any) -> ray.train.RunConfig:
    return ray.train.RunConfig(name="digits", storage_path=str(folder), **options)


def train(config: dict[str, Any]) -> dict[str, Any] | None:
    import os

    import torch

    import swell
    from tests.job.scenario import Points, make_model, mean_loss

    job = swell.Job(batch=12, micro=3, rule="linear", base=6, seed=4, save=swell.Cadence(every_samples=130))
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.003))
    loader = job.loader(Points(130), shuffle=True)
    for epoch in job.epochs(config["epochs"]):
        for x, y, _ in loader:
            if epoch == config.get("fails"):
                raise RuntimeError("the third wheel came off")
            job.metrics.sum("seen", len(y))
            job.backward(mean_loss(model, x, y))
            job.step()
    main, steps = job.is_main, job.steps
    job.close()
    return {"folder": os.environ["SWELL_RUN_DIR"], "steps": steps} if main else None


@pytest.mark.distributed
@pytest.mark.slow
def test_fit_trains_and_says_what_ray_train_says(tmp_path: Path, nodes: RayNodes) -> None:
    folder = tmp_path / "digits"
    failing = swell.ray.Trainer(
        train, train_loop_config={"epochs": 3, "fails": 2}, scaling_config=TWO, run_config=run_config(tmp_path)
    )
    with pytest.raises(ray.train.TrainingFailedError, match="status 1") as failure:
        failing.fit()
    assert "the third wheel came off" in str(failure.value)
    log = folder / "events.jsonl"
    assert [event.epoch for event in read_events(log) if isinstance(event, EpochEnded)] == [0, 1]

    trainer = swell.ray.Trainer(
        train, train_loop_config={"epochs": 3}, scaling_config=TWO, run_config=run_config(tmp_path)
    )
    result = trainer.fit()  # the same name: it goes on after the two epochs that are there
    assert result.error is None and result.path == str(folder)
    assert result.return_value == {"folder": str(folder), "steps": 33}
    assert result.metrics is not None and result.metrics["seen"] == 130 and result.metrics["step"] == 33
    assert result.metrics_dataframe is not None and list(result.metrics_dataframe["epoch"]) == [0, 1, 2]
    assert result.checkpoint is not None and Path(result.checkpoint.path).parent == folder / "checkpoints"
    control = folder / "control"
    assert control.stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in control.glob("*.pkl"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"datasets": {"train": object()}}, "datasets has train"),
        ({"scaling_config": ray.train.ScalingConfig(placement_strategy="STRICT_PACK")}, "expected PACK or SPREAD"),
        ({"run_config": ray.train.RunConfig(storage_path="s3://bucket/runs")}, "disk that all nodes share"),
        (
            {"run_config": ray.train.RunConfig(checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1))},
            "save= and keep=",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_words(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        swell.ray.Trainer(train, **arguments)


def test_a_function_of_two_arguments_is_refused(tmp_path: Path, nodes: RayNodes) -> None:
    with pytest.raises(ConfigError, match="takes 2 arguments"):
        swell.ray.Trainer(lambda a, b: None, run_config=run_config(tmp_path)).fit()


@pytest.mark.distributed
@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: RayNodes) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "ray.md"
    [block] = blocks(page)
    exec(compile(block["code"], str(page), "exec"), namespace := {"__name__": "__main__"})
    assert namespace["result"].metrics["samples"] == 128
