"""Running a script only to measure it: shared by ``swell noise`` and ``swell tune``."""

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


def rehearse(script: str, arguments: Sequence[str], *, workers: int, **wanted: Any) -> dict[str, Any]:
    """Run a training script until enough is measured; its weights, run folder and checkpoints stay as they are."""
    from swell.job.rehearsal import Rehearse
    from swell.runtime.environment import variables_for

    if not Path(script).is_file():
        raise ConfigError(f"there is no script {script!r} here. Give the path of a script that trains with swell.Job.")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "findings.json"
        environment = variables_for(rehearse=Rehearse(out=str(out), **wanted).to_json())
        launch = [sys.executable]
        if workers > 1:
            launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        done = subprocess.run([*launch, script, *arguments], env=environment, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise ConfigError(
                f"{script} ended with status {done.returncode} before anything could be measured; what it said stands "
                f"above. Run it by itself first: {os.path.basename(sys.executable)} {script}"
            )
        if not out.exists():
            raise ConfigError(
                f"{script} came to its end before enough was measured. Give it more epochs, or a larger data set; and "
                f"check that it trains with swell.Job and calls job.step()."
            )
        return json.loads(out.read_text())
