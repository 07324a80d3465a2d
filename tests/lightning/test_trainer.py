"""Lightning's Trainer: its weights at a fixed batch on one worker, and the same on any number of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lightning.scenario import train_with_lightning
from tests.workers import run_processes

close = pytest.approx


def swell_run(samples: int, micro: int = 4, batch: Any = 16, **options: Any) -> tuple[list[float], Any]:
    import swell.lightning

    return train_with_lightning(samples, micro=micro, strategy=swell.lightning.Strategy(batch=batch), **options)


def swell_figures(options: dict[str, Any]) -> tuple[list[float], int, int, list[tuple[int, float]]]:
    weights, trainer = swell_run(**options)
    return weights, trainer.global_step, trainer.current_epoch, trainer.lightning_module.validated


OPTIONS = [
    {},
    {"gradient_clip_val": 0.3},
    {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    {"decay": "progress"},
    {"decay": "epoch"},
    {"decay": "plateau"},
    {"max_steps": 9, "max_epochs": -1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_at_a_fixed_batch_everything_is_as_in_the_plain_trainer(options: dict[str, Any]) -> None:
    plain, reference = train_with_lightning(96, micro=16, **options)
    for micro in (16, 4):
        weights, trainer = swell_run(96, micro=micro, **options)
        assert weights == close(plain, rel=1e-12)
        assert (trainer.global_step, trainer.current_epoch) == (reference.global_step, reference.current_epoch)
        validated = [(step, close(loss)) for step, loss in reference.lightning_module.validated]
        assert trainer.lightning_module.validated == validated


@pytest.mark.distributed
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"samples": 96, "gradient_clip_val": 0.3},
        {"samples": 100, "decay": "progress"},
        {"samples": 97, "decay": "epoch", "shuffle": True},  # one sample in the last step of an epoch
    ],
    ids=str,
)
def test_any_number_of_workers_gives_the_same_weights(workers: int, options: dict[str, Any]) -> None:
    weights, *counts, validated = swell_figures(options)
    for other, *other_counts, other_validated in run_processes(workers, swell_figures, options, timeout_s=120):
        assert other == close(weights, rel=1e-12)
        assert other_counts == counts
        assert other_validated == [(step, close(loss, rel=1e-12)) for step, loss in validated]
