"""Errors out of nowhere: a signal handler raises in the main thread at whatever instruction it finds it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import swell.data

FOLDER = str(Path(swell.data.__file__).parent)


class Interrupted(Exception):
    """What the handler raises."""


def interrupted(function: Callable[[], Any], at: int) -> bool:
    """Run ``function``, raising before the line numbered ``at`` that is run in swell.data; whether it got that far."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line":
            lines += 1
            if lines == at + 1:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except Exception:
        return True
    finally:
        sys.settrace(before)
    return False
