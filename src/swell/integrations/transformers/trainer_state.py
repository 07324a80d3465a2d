"""The part of a trainer's state that belongs to the run: counts, history, the best model, what callbacks counted."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers.trainer_callback import ExportableState, TrainerControl

# Fields that belong to the process or to the script's arguments.
OWN = frozenset(
    [
        "is_local_process_zero",
        "is_world_process_zero",
        "is_hyper_param_search",
        "trial_name",
        "trial_params",
        "max_steps",
        "num_train_epochs",
        "logging_steps",
        "eval_steps",
        "save_steps",
        "train_batch_size",
        "stateful_callbacks",
    ]
)


def captured(state: Any, control: TrainerControl, callbacks: Sequence[Any]) -> dict[str, Any]:
    """The run's part as plain values; quick, because it is taken at every step."""
    fields = {name: value for name, value in vars(state).items() if name not in OWN}
    fields["log_history"] = list(state.log_history)
    counted = [[type(each).__name__, each.state()["attributes"]] for each in callbacks if _counts(each)]
    return {"state": fields, "stop": control.should_training_stop, "callbacks": counted}


def restore(saved: dict[str, Any], state: Any, control: TrainerControl, callbacks: Sequence[Any]) -> None:
    """Set a trainer's state to one that was captured; callbacks keep the arguments that the script gave them."""
    for name, value in saved["state"].items():
        if name not in OWN and hasattr(state, name):
            setattr(state, name, value)
    control.should_training_stop = saved["stop"]
    control.should_log = control.should_evaluate = control.should_save = False  # done by those whose state this is
    left = [each for each in callbacks if _counts(each)]
    for kind, attributes in saved["callbacks"]:
        each = next((each for each in left if type(each).__name__ == kind), None)
        if each is not None:
            left.remove(each)
            for name, value in attributes.items():
                setattr(each, name, value)


def _counts(callback: Any) -> bool:
    return isinstance(callback, ExportableState) and not isinstance(callback, TrainerControl)
