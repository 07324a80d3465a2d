"""Where a trainer's run is kept, and where its weights come from when it is told to resume."""

from __future__ import annotations

import warnings
from pathlib import Path

from swell.errors import ConfigError
from swell.runtime.environment import read_environment

FOLDER = "swell"  # of the run, inside output_dir


def run_folder(given: str | Path | None, output_dir: str) -> str | Path | None:
    """The run's folder: the one given, that of ``swell run --run-dir``, or one inside ``output_dir``."""
    if given is None and not read_environment().swell_run_dir_given:
        return Path(output_dir) / FOLDER
    return given


def takes_weights(path: str, *, run_dir: Path | None, output_dir: str) -> bool:
    """Whether the weights of a checkpoint of the plain trainer are to be loaded: not where the run has begun.

    Then a path inside ``output_dir`` means this run, which resumes by itself from its own folder, at a later step than
    that checkpoint; another path is refused.
    """
    begun = run_dir is not None and any((run_dir / "checkpoints").glob("*"))
    if not begun:
        warnings.warn(
            f"the weights of {path} are taken; the optimizer, the schedule and the data start from the beginning, "
            "because that checkpoint does not say which samples were used.",
            stacklevel=4,
        )
        return True
    if Path(output_dir).resolve() not in Path(path).resolve().parents:
        raise ConfigError(
            f"resume_from_checkpoint is {path!r}, and the run in {run_dir} has begun; expected one of them. Leave it "
            "out to resume the run, or choose another output_dir to start from those weights."
        )
    return False
