"""Other trainers have an environment of their own: ``make test-trainers``. Without them nothing is collected."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PURE = ("test_missing.py", "test_record.py", "test_releases.py")

collect_ignore: list[str] = []
if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("lightning") is None:
    collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name not in PURE]
