"""What every test can rely on: no time limits in property tests, one thread a process."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

# A shared machine is slow now and then; a property that holds late still holds.
settings.register_profile("swell", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("swell")

# Before torch is imported: workers of the test run share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Only tests are collected here; doctests would otherwise import scripts that are meant to be run as processes."""
    beside = collection_path.suffix == ".py" and not collection_path.name.startswith(("test_", "__init__", "conftest"))
    return True if beside else None
