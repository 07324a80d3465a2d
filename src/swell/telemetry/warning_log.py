"""The warnings of a run in the program's own log, where no progress line shows them."""

from __future__ import annotations

import logging

from swell.core.events import Event, Warned

_LOGGER = logging.getLogger("swell")


class WarningLog:
    """Passes warnings to the logger ``swell``, which writes to the standard error unless the program has set it up."""

    def emit(self, event: Event) -> None:
        if isinstance(event, Warned):
            _LOGGER.warning("warning: %s", event.message)

    def close(self) -> None:
        """There is nothing to close."""
