"""Ray has an environment of its own: ``make test-ray``. Without it only what needs no Ray is collected."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PURE = ("test_missing.py",)

collect_ignore: list[str] = []
if importlib.util.find_spec("ray") is None:
    collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name not in PURE]
