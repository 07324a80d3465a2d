"""The whole state of a run as one nested value: for checkpoints on disk and for newcomers in memory alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from swell.errors import CheckpointError, SwellError
from swell.job.trainee import Trainee

if TYPE_CHECKING:
    from swell.job.job import Job

HYPER_PARAMETERS = (int, float, bool, str, type(None), tuple, list)


def capture(job: Job) -> dict[str, Any]:
    """Everything that cannot be recomputed; the same on every replica, so any number of them can go on from it."""
    for trainee in job._trainees:
        trainee.drain()
    return {
        "ledger": job._ledger.state_dict(),
        "stream": job._training.state_dict(),
        "pace": job._pace.state_dict(),
        "ending": job._ending.state_dict(),
        "metrics": job.metrics.state_dict(),
        "trainees": [capture_trainee(trainee) for trainee in job._trainees],
        "registered": {name: thing.state_dict() for name, thing in job._registered.items()},
    }


def restore(job: Job, state: Mapping[str, Any]) -> None:
    """Go on from a captured state; what was registered since starts as it is."""
    if len(state["trainees"]) != len(job._trainees):
        raise CheckpointError(
            f"the saved state has {len(state['trainees'])} optimizer(s), this job has {len(job._trainees)}. Call "
            f"job.wrap for the same models and optimizers as the run that saved it, or start in another run folder."
        )
    job._ledger.load_state_dict(state["ledger"])
    job._training.load_state_dict(state.get("stream", {}))
    job._pace.load_state_dict(state["pace"])
    job._ending.load_state_dict(state["ending"])
    job.metrics.load_state_dict(state["metrics"])
    for trainee, saved in zip(job._trainees, state["trainees"], strict=True):
        try:
            restore_trainee(trainee, saved)
        except SwellError:
            raise
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"the run in {job.run_dir} is of another model or optimizer than this script's: {error}. Start in "
                f"another run folder, or delete this one, to train anew; or make the model and the optimizer that "
                f"were saved."
            ) from error
    for name, saved in state["registered"].items():
        if name in job._registered:
            job._registered[name].load_state_dict(saved)


def capture_trainee(trainee: Trainee) -> dict[str, Any]:
    """An optimizer with all that belongs to it."""
    parameters = trainee.accumulator.parameters
    return {
        "kind": type(trainee.optimizer).__name__,
        "given": trainee.given,
        "model": trainee.model.state_dict(),
        "optimizer": trainee.optimizer.state_dict(),
        # Kept apart as well: sharded checkpoints are known to lose scalars such as initial_lr.
        "groups": [
            {key: value for key, value in group.items() if key != "params" and isinstance(value, HYPER_PARAMETERS)}
            for group in trainee.optimizer.param_groups
        ],
        "schedule": None if trainee.schedule is None else trainee.schedule.state_dict(),
        "scaler": None if trainee.scaler is None else trainee.scaler.state_dict(),
        "noise": trainee.noise.state_dict(),
        "preconditioned_noise": trainee.preconditioned_noise.state_dict(),
        "clock": trainee.clock.state_dict(parameters),
    }


def restore_trainee(trainee: Trainee, saved: Mapping[str, Any]) -> None:
    """Go on from what ``capture_trainee`` gave."""
    trainee.clear()
    kind = type(trainee.optimizer).__name__
    if saved.get("kind", kind) != kind:
        raise ValueError(f"its optimizer is {saved['kind']}, and this one is {kind}")
    trainee.model.load_state_dict(saved["model"])
    trainee.optimizer.load_state_dict(saved["optimizer"])
    trainee.accumulator.preconditioner.reset()
    for group, values in zip(trainee.optimizer.param_groups, saved["groups"], strict=True):
        group.update(values)
    if trainee.schedule is not None and saved["schedule"] is not None:
        trainee.schedule.load_state_dict(saved["schedule"])
    if trainee.scaler is not None and saved["scaler"]:
        trainee.scaler.load_state_dict(saved["scaler"])
    trainee.noise.load_state_dict(saved["noise"])
    trainee.preconditioned_noise.load_state_dict(saved["preconditioned_noise"])
    trainee.clock.load_state_dict(saved["clock"], trainee.accumulator.parameters)
    trainee.given = saved.get("given", trainee.given)
