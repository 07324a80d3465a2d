"""Write ``numbers.json``: what Run:AI's own library computes.

Run in an environment of its own with torch and ``pip install --no-deps runai==0.4.1``, from the root of the repository:
``python -m tests.golden.runai.record``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.golden.runai.scenarios import LAYOUTS, OPTIMIZERS, accumulated


def main() -> None:
    import runai.elastic.torch  # pyright: ignore[reportMissingImports]
    import runai.ga.torch.optim  # pyright: ignore[reportMissingImports]

    numbers: dict[str, Any] = {"layouts": [], "weights": {}}
    for layout in LAYOUTS:
        runai.elastic.torch.init(*layout)
        numbers["layouts"].append([*layout, runai.elastic.steps, runai.elastic.batch_size])
    for name in OPTIMIZERS:
        # Run:AI adds gradients up without dividing: the loss is divided for it.
        numbers["weights"][name] = accumulated(getattr(runai.ga.torch.optim, name), divide_loss=True)
    Path(__file__).with_name("numbers.json").write_text(json.dumps({"runai": "0.4.1", **numbers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
