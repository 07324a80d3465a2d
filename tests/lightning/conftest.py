"""Lightning is in an environment of its own: ``make test-trainers``. Without it these tests are skipped."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEED_NOTHING = {"test_missing.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("lightning") is None:
        skip = pytest.mark.skip(reason="lightning is not installed; make test-trainers has it")
        for item in items:
            if HERE in item.path.parents and item.path.name not in NEED_NOTHING:
                item.add_marker(skip)
