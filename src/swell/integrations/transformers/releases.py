"""The releases of transformers that are known to fit, and the private names of its Trainer that are used here."""

# pyright: reportMissingImports=false
from __future__ import annotations

import inspect
from typing import Any

from swell.errors import DependencyError

OLDEST, BELOW = (5, 20), (6, 0)
TESTED = "5.22.2"

# Methods of transformers.Trainer that the mixin overrides or calls, with the parameters that it relies on.
METHODS: dict[str, tuple[str, ...]] = {
    "create_accelerator_and_postprocess": (),
    "set_initial_training_values": ("args", "dataloader"),
    "evaluation_loop": ("dataloader", "description", "prediction_loss_only", "ignore_keys", "metric_key_prefix"),
    "training_step": ("model", "inputs", "num_items_in_batch"),
    "_prepare_for_training": ("max_steps", "train_dataloader", "resume_from_checkpoint"),
    "_run_epoch": ("model", "trial", "ignore_keys_for_eval", "start_time"),
    "_maybe_log_save_evaluate": (
        "tr_loss", "grad_norm", "model", "trial", "epoch", "ignore_keys_for_eval", "start_time", "learning_rate",
    ),
    "_evaluate": ("trial", "ignore_keys_for_eval", "skip_scheduler"),
    "_save_checkpoint": ("model", "trial"),
    "_get_output_dir": ("trial",),
    "_get_learning_rate": (),
    "_load_from_checkpoint": ("resume_from_checkpoint",),
    "_track_num_input_tokens": ("inputs",),
}  # fmt: skip
# What its training loop calls in this order, and attributes that its code reads and writes.
LOOP = ("set_initial_training_values", "_prepare_for_training", "on_train_begin", "_run_epoch", "_finalize_training")
ATTRIBUTES = ("_tr_loss", "_globalstep_last_logged", "_loss_shifts_labels", "current_flos", "model_accepts_loss_kwargs")


def require_known_release(trainer: Any, version: str) -> None:
    """Raise ``DependencyError`` where this release of transformers is not known, or has moved what is used here."""
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not OLDEST <= release < BELOW:
        raise DependencyError(
            f"transformers is {version}; expected at least {_text(OLDEST)} and below {_text(BELOW)}, whose Trainer "
            f"swell knows. Run pip install 'transformers>={_text(OLDEST)},<{_text(BELOW)}'."
        )
    moved = moved_names(trainer)
    if moved:
        raise DependencyError(
            f"transformers is {version}, whose Trainer has no {', '.join(moved)}; expected them as in {TESTED}. Run "
            f"pip install transformers=={TESTED}, or a newer swell."
        )


def moved_names(trainer: Any) -> list[str]:
    """What is used here of a Trainer class and is not where it was."""
    moved = []
    for name, parameters in METHODS.items():
        method = getattr(trainer, name, None)
        present = inspect.signature(method).parameters if callable(method) else {}
        moved += [f"{name}({parameter})" for parameter in parameters if parameter not in present]
        moved += [] if callable(method) else [name]
    source = inspect.getsource(trainer)
    moved += [name for name in ATTRIBUTES if f"self.{name}" not in source]
    loop = getattr(trainer, "_inner_training_loop", None)
    text = inspect.getsource(loop) if loop is not None else ""
    places = [text.find(f".{name}(") for name in LOOP]
    if -1 in places or places != sorted(places):
        moved.append("_inner_training_loop that calls " + ", ".join(LOOP) + " in this order")
    return moved


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
