"""Lightning is in an environment of its own: ``make test-trainers``. Without it nothing that needs it is collected."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PURE = ("test_missing.py",)

collect_ignore: list[str] = []
if importlib.util.find_spec("lightning") is None:
    collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name not in PURE]
