"""Noise, gain and batch in the trainer's own logs, and so in every tracker that ``report_to`` names."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

from transformers.trainer_callback import TrainerCallback

from swell.job import Job


class Figures(TrainerCallback):
    """Adds the job's figures to each log of the training loss; ``trainer.remove_callback(Figures)`` leaves them out."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.metrics: dict[str, float] = {}  # what the script has added to job.metrics since the last log

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **others: Any) -> None:
        """Add the figures to the log, before other callbacks see it, and to the trainer's history."""
        if logs is None or "loss" not in logs:
            return
        figures = self.figures()
        logs.update(figures)
        if state.log_history:
            state.log_history[-1].update(figures)

    def figures(self) -> dict[str, float]:
        """The batch, what the latest step was worth, and the noise where it is measured."""
        job = self._job
        figures: dict[str, float] = {"global_batch": job.global_batch, "replicas": job.replicas, "gain": job.gain}
        figures.update(self.metrics)
        if job.lr_factors:
            figures["lr_factor"] = job.lr_factors[0]
        noise = job.engine.state.noise
        if noise is not None:
            figures.update(noise_scale=noise.total.noise_scale, signal=noise.total.signal, noise=noise.total.noise)
        return figures
