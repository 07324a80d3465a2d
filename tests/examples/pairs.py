"""The pairs of examples, and how the tests run them: briefly, with a result, on any layout."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/train_torch.py"))


def passes(epochs: int, limit: int) -> list[str]:
    return ["--epochs", str(epochs), "--limit", str(limit)]


@dataclass(frozen=True)
class Pair:
    """How to run a pair for a few seconds; ``tolerance`` is more than two seeds of the plain script are apart."""

    brief: list[str]  # arguments for two steps or more
    arguments: list[str]  # for a run with a result
    samples: int | None  # of that run; None where the batch follows what is measured
    tolerance: float
    changed_lines: int = 15  # at most


GPT = ["--eval_interval=10", "--n_embd=16", "--warmup_iters=3"]
PAIRS = {
    "dcgan": Pair(passes(1, 128), passes(6, 256), 6 * 256, 0.4, changed_lines=25),
    "image_classifier": Pair(passes(1, 256), passes(3, 512), 3 * 512, 0.2),
    "language_model": Pair(passes(1, 160), passes(2, 256), None, 0.1),
    "lora": Pair(passes(1, 128), passes(3, 256), 3 * 256, 0.1),
    "nanogpt": Pair(
        ["--max_iters=10", *GPT], ["--max_iters=30", "--lr_decay_iters=30", *GPT], 30 * 32, 0.1, changed_lines=60
    ),
    "ppo": Pair(
        ["--num-iterations", "1"],
        ["--num-iterations", "20", "--learning-rate", "0.02"],
        20 * 4 * 256,
        0.35,
        changed_lines=60,
    ),
    "streaming": Pair(passes(1, 128), passes(2, 512), 2 * 512, 0.25),
    "vae": Pair(passes(1, 128), passes(3, 512), 3 * 512, 0.05),
}


def run_script(
    name: str, script: str, folder: str, arguments: list[str], adapt: Callable[[dict[str, Any]], None] | None = None
) -> float:
    """What the script's main function returns; it runs in ``folder``, on the data that it brings along.

    ``adapt`` may change the names of the script before.
    """
    os.chdir(folder)
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # nothing is downloaded in tests
    sys.argv = [script, *arguments]
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with pytest.MonkeyPatch.context() as patch, quiet[0], quiet[1]:
        patch.delenv("SWELL_DATA", raising=False)
        main = runpy.run_path(str(EXAMPLES / name / script))["main"]
        if adapt is not None:
            adapt(main.__globals__)
        return main()
