"""A trainer with the face of Ray Train's: the same arguments and the same result, resized in place."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas
import ray
import ray.train
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

from swell.core.events import EpochEnded, Saved
from swell.errors import ConfigError
from swell.integrations.ray import cluster
from swell.integrations.ray.head_process import run_head
from swell.integrations.ray.train_process import forget_returned, read_returned, write_function
from swell.supervisor.notice import EXIT_RESUME
from swell.supervisor.run_dir import RunDir
from swell.telemetry.run_folder import RunFolder

_ENDLESS = 10**9  # restarts, for Ray's -1
_WORKER = "swell.integrations.ray.train_process"


class Trainer:
    """Trains a function on the nodes of a Ray cluster that come and go, in place of ``ray.train.torch.TorchTrainer``.

    ``train_loop_per_worker`` takes ``train_loop_config`` or nothing, and has a ``swell.Job`` in it without a folder:
    its folder is ``storage_path/name`` of ``run_config``, on a disk that all nodes share. Survivors keep their
    processes when nodes come and go, and every sample counts once. The same name goes on where it ended before.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        scaling_config: ray.train.ScalingConfig | None = None,
        run_config: ray.train.RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
    ) -> None:
        self.train_loop_per_worker, self.train_loop_config = train_loop_per_worker, train_loop_config
        self.scaling_config = scaling_config or ray.train.ScalingConfig()
        self.run_config = run_config or ray.train.RunConfig()
        if datasets:
            raise ConfigError(
                f"datasets has {', '.join(datasets)}; expected none, because shards of Ray Data have no position that "
                f"another number of workers could go on from. Use job.loader with a data set inside the function."
            )
        _refuse(self.scaling_config, self.run_config)

    def fit(self) -> ray.train.Result:
        """Train to the end and return what there is to know of the run.

        ``metrics`` are those of the last epoch (``job.metrics``) with its counts, ``metrics_dataframe`` has all epochs,
        ``checkpoint`` is the newest one, ``return_value`` what the function returned on the first worker that returned
        something. Raises ``ray.train.TrainingFailedError`` where training failed, or was stopped before its end.
        """
        cluster.connect(or_start=True)
        run_dir = self.run_dir
        if cluster.has_working_copy() and not Path(str(self.run_config.storage_path)).expanduser().is_absolute():
            raise ConfigError(
                f"storage_path is {self.run_config.storage_path!r}, inside the temporary copy that Ray has made of "
                f"your folder; expected one on a disk that all nodes share. Give an absolute path."
            )
        run_dir.mkdir(parents=True, exist_ok=True)
        function = write_function(run_dir, self.train_loop_per_worker, self.train_loop_config)
        forget_returned(run_dir)
        line = ["run", "--engine", "ray", "--run-dir", str(run_dir), "--workers", _workers(self.scaling_config)]
        line += ["--max-restarts", str(_restarts(self.run_config))]
        line += ["--ray-options", json.dumps(_actor_options(self.scaling_config, self.run_config))]
        status, words = run_head([*line, "-m", _WORKER, str(function)], folder=run_dir, variables=_variables())
        if status == EXIT_RESUME:
            raise ray.train.TrainingFailedError(
                f"the run in {run_dir} was stopped before its end; its state is saved. Call fit() again with the same "
                f"name and storage_path, or run `swell resume {run_dir}`, to go on."
            )
        if status != 0:
            raise ray.train.TrainingFailedError(
                f"the run in {run_dir} ended with status {status}; expected 0. Its last words, the rest is in "
                f"{run_dir / 'logs'}:\n{words}"
            )
        return _result(run_dir)

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        assert self.run_config.storage_path is not None and self.run_config.name is not None
        return Path(self.run_config.storage_path).expanduser().resolve() / self.run_config.name


def _refuse(scaling: ray.train.ScalingConfig, run: ray.train.RunConfig) -> None:
    if getattr(scaling, "use_tpu", False):
        raise ConfigError("use_tpu is True; expected False, because swell trains on GPUs and CPUs. Leave it out.")
    if isinstance(scaling.label_selector, list):
        raise ConfigError("label_selector is a list; expected one for all workers, because they come and go. Give one.")
    if scaling.placement_strategy not in ("PACK", "SPREAD"):
        raise ConfigError(
            f"placement_strategy is {scaling.placement_strategy!r}; expected PACK or SPREAD, because workers that come "
            f"and go cannot be in one placement group. Give one of these."
        )
    if "://" in str(run.storage_path) or run.storage_filesystem is not None:
        raise ConfigError(
            f"storage_path is {str(run.storage_path)!r}; expected a folder on a disk that all nodes share, without a "
            f"storage_filesystem. Mount one, for example by NFS."
        )
    if run.callbacks or run.checkpoint_config != ray.train.CheckpointConfig():
        raise ConfigError(
            "run_config has callbacks or a checkpoint_config; expected neither, because the job in the function "
            "decides what is saved and reported. Give save= and keep= to swell.Job."
        )


def _workers(scaling: ray.train.ScalingConfig) -> str:
    number = scaling.num_workers
    low, high = number if isinstance(number, tuple) else (number, number)
    if low < 1:
        raise ConfigError(f"num_workers is {number}; expected 1 or more. Call the function itself to run it locally.")
    return f"{low}:{high}"


def _restarts(run: ray.train.RunConfig) -> int:
    failures = 0 if run.failure_config is None else run.failure_config.max_failures
    return _ENDLESS if failures < 0 else failures


def _actor_options(scaling: ray.train.ScalingConfig, run: ray.train.RunConfig) -> dict[str, Any]:
    others = dict(scaling.additional_resources_per_worker)
    options: dict[str, Any] = {"num_cpus": scaling.num_cpus_per_worker, "num_gpus": scaling.num_gpus_per_worker}
    if "memory" in others:
        options["memory"] = others.pop("memory")
    if others:
        options["resources"] = others
    if scaling.label_selector:
        options["label_selector"] = scaling.label_selector
    if scaling.placement_strategy == "SPREAD":
        options["scheduling_strategy"] = "SPREAD"
    if run.worker_runtime_env:
        options["runtime_env"] = dict(run.worker_runtime_env)
    return options


def _variables() -> dict[str, str]:
    """What lets another process be a driver of the same cluster with the same runtime environment."""
    context = ray.get_runtime_context()
    variables = {"RAY_ADDRESS": context.gcs_address}
    if context.runtime_env:
        config = {"runtime_env": context.runtime_env.to_dict(), "metadata": {}}
        variables[RAY_JOB_CONFIG_JSON_ENV_VAR] = json.dumps(config)
    return variables


def _result(run_dir: Path) -> ray.train.Result:
    job_folder = RunDir(run_dir).job_folder
    run = RunFolder(job_folder)
    run.poll()
    run.reader.close()
    events = [note.event for note in run.model.notes]
    epochs = {event.epoch: event for event in events if isinstance(event, EpochEnded)}  # one done again counts once
    saved = [event.path for event in events if isinstance(event, Saved) and Path(event.path).is_dir()]
    metrics: dict[str, Any] = dict(run.model.metrics)
    if run.model.latest is not None:
        latest = run.model.latest
        metrics |= {"epoch": latest.epoch, "step": latest.step, "samples": latest.samples, "loss": latest.loss}
    rows = [{"epoch": each.epoch, "samples": each.samples, **each.metrics} for each in epochs.values()]
    return ray.train.Result(
        metrics=metrics,
        checkpoint=ray.train.Checkpoint.from_directory(saved[-1]) if saved else None,
        error=None,
        path=str(run_dir),
        metrics_dataframe=pandas.DataFrame(rows),
        return_value=read_returned(run_dir),
    )
