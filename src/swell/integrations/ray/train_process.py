"""One worker of ``swell.ray.Trainer``: calls the training function that the driver has written into the run's folder.

python -m swell.integrations.ray.train_process FILE
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from ray import cloudpickle

from swell.core.regular_files import write_private
from swell.errors import ConfigError
from swell.runtime.environment import read_environment
from swell.supervisor.run_dir import RunDir

_RETURNED = "returned-"


def write_function(run_dir: Path, function: Callable[..., Any], config: Mapping[str, Any] | None) -> Path:
    """Write a training function and its argument for the workers of a run; only its owner can read or write the file.

    The driver's ``sys.path`` goes with it, so that workers find the modules that it was imported from.
    """
    takes = len(inspect.signature(function).parameters)
    if takes > 1:
        raise ConfigError(
            f"train_loop_per_worker takes {takes} arguments; expected none, or one for train_loop_config. Change it."
        )
    content = cloudpickle.dumps((function, ({} if config is None else dict(config),) if takes else ()))
    path = [entry or os.getcwd() for entry in sys.path]
    folder = RunDir(run_dir).control
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    whole = cloudpickle.dumps((path, content))
    file = folder / f"function-{sha256(whole).hexdigest()[:16]}.pkl"
    write_private(file, whole)
    return file


def forget_returned(run_dir: Path) -> None:
    """Remove what earlier workers of a run returned."""
    for file in RunDir(run_dir).control.glob(f"{_RETURNED}*.pkl"):
        file.unlink(missing_ok=True)


def read_returned(run_dir: Path) -> Any:
    """What the function returned on the first worker that returned something; None if none did."""
    files = RunDir(run_dir).control.glob(f"{_RETURNED}*.pkl")
    numbered = {int(file.stem.removeprefix(_RETURNED)): file for file in files}
    return cloudpickle.loads(numbered[min(numbered)].read_bytes()) if numbered else None


def main() -> None:
    """Call the function; what it returns is written into the run's folder."""
    file = Path(sys.argv[1])
    path, content = cloudpickle.loads(file.read_bytes())
    sys.path += [entry for entry in path if entry not in sys.path and os.path.exists(entry)]
    function, arguments = cloudpickle.loads(content)
    returned = function(*arguments)
    if returned is not None:
        member = read_environment().swell_member or 0
        write_private(file.with_name(f"{_RETURNED}{member}.pkl"), cloudpickle.dumps(returned))


if __name__ == "__main__":
    main()
