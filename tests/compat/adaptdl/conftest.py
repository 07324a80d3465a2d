"""Every test begins and ends without a session, and without AdaptDL's variables."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import swell.compat.adaptdl as adaptdl


@pytest.fixture(autouse=True)
def _own_session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("ADAPTDL_"):
            monkeypatch.delenv(name)
    adaptdl.close()
    yield
    adaptdl.close()
