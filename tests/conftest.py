"""What every test can rely on: no time limits in property tests, one thread a process."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A shared machine is slow now and then; a property that holds late still holds.
settings.register_profile("swell", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("swell")

# Before torch is imported: workers of the test run share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
