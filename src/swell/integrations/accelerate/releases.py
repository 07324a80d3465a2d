"""The releases of Accelerate that are known to fit, and the names of it that are overridden or private."""

# pyright: reportMissingImports=false
from __future__ import annotations

import inspect
from typing import Any

from swell.errors import DependencyError

OLDEST, BELOW = (1, 14), (2, 0)
TESTED = "1.15.0"

METHODS: dict[str, tuple[str, ...]] = {
    "prepare_data_loader": ("data_loader", "device_placement"),
    "prepare_model": ("model", "device_placement", "evaluation_mode"),
    "prepare_optimizer": ("optimizer", "device_placement"),
    "prepare_scheduler": ("scheduler",),
    "backward": ("loss",),
    "accumulate": (),
    "clip_grad_norm_": ("parameters", "max_norm", "norm_type"),
    "gather": ("tensor",),
    "gather_for_metrics": ("input_data", "use_gather_object"),
    "save_state": ("output_dir",),
    "load_state": ("input_dir",),
    "end_training": (),
}
STATE = ("distributed_type", "num_processes", "process_index", "local_process_index", "device")


def require_known_release(accelerator: Any, partial_state: Any, version: str) -> None:
    """Raise ``DependencyError`` where this release of Accelerate is not known, or has moved what is used here."""
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    oldest, below = (".".join(map(str, bound)) for bound in (OLDEST, BELOW))
    if not OLDEST <= release < BELOW:
        raise DependencyError(
            f"accelerate is {version}; expected at least {oldest} and below {below}, which swell knows. Run "
            f"pip install 'accelerate>={oldest},<{below}'."
        )
    moved = moved_names(accelerator, partial_state)
    if moved:
        raise DependencyError(
            f"accelerate is {version}, which has no {', '.join(moved)}; expected them as in {TESTED}. Run "
            f"pip install accelerate=={TESTED}, or a newer swell."
        )


def moved_names(accelerator: Any, partial_state: Any) -> list[str]:
    """What is used here of Accelerate's classes and is not where it was."""
    moved = []
    for name, parameters in METHODS.items():
        method = getattr(accelerator, name, None)
        present = inspect.signature(method).parameters if callable(method) else {}
        moved += [f"{name}({parameter})" for parameter in parameters if parameter not in present]
        moved += [] if callable(method) else [name]
    if not hasattr(partial_state, "_shared_state"):
        moved.append("PartialState._shared_state")
    known = getattr(partial_state, "_known_attrs", ())
    return moved + [f"PartialState.{name}" for name in STATE if name not in known]
