"""Errors at any instruction, as a signal handler raises them in the main thread."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import swell.data

FOLDER = str(Path(swell.data.__file__).parent)


class Interrupted(Exception):
    """The error that the handler raises."""


def interrupted(function: Callable[[], Any], at: int) -> bool:
    """Run ``function`` and raise before line number ``at`` that runs in swell.data; return whether it got that far."""
    lines, process = 0, os.getpid()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if os.getpid() != process:  # a data-loading worker that was forked meanwhile
            sys.settrace(None)
            return None
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
