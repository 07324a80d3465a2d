"""Run a script only to measure it, for ``swell noise`` and ``swell tune``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swell.errors import ConfigError


def rehearse(script: str, arguments: Sequence[str], *, workers: int, **order: Any) -> dict[str, Any]:
    """Run a training script until enough is measured; its weights, run folder and checkpoints do not change."""
    from swell.job.rehearsal import Rehearse
    from swell.runtime.environment import variables_for

    if not Path(script).is_file():
        raise ConfigError(f"script is {script!r}; expected the path of an existing script that trains with swell.Job.")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "findings.json"
        environment = variables_for(rehearse=Rehearse(out=str(out), **order).to_json())
        launch = [sys.executable]
        if workers > 1:
            launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        done = subprocess.run([*launch, script, *arguments], env=environment, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise ConfigError(
                f"{script} ended with status {done.returncode}; expected 0. Its output is above. Run it by itself "
                f"first: {os.path.basename(sys.executable)} {script}"
            )
        if not out.exists():
            raise ConfigError(
                f"{script} ended before enough was measured; expected a longer run. Give it more epochs or a larger "
                f"data set, and check that it trains with swell.Job and calls job.step()."
            )
        return json.loads(out.read_text())
