"""Where in the user's script a call came from, for warnings that point there."""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def script_level() -> int:
    """The ``stacklevel`` at which the caller's warning points at the script, the first frame outside this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    return level
