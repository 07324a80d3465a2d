"""One line of a log, read: an event, a short step, the start of the file, or a line that was cut."""

from __future__ import annotations

import json

from swell.core.events import Event, LogStarted, from_json
from swell.errors import ConfigError
from swell.telemetry.step_lines import StepReader

SCHEMA = 2  # 1 had no first line and no short steps


class Torn(Exception):
    """The line is not complete: a process was killed or the disk was full while it was written."""


class LineReader:
    """Reads lines in their order; short steps build on the steps before them."""

    def __init__(self) -> None:
        self._steps = StepReader()
        self.schema = 1

    def read(self, line: bytes) -> Event | None:
        """The line's event; None for one that says nothing about the run. Raises ``Torn``, or ``ConfigError``."""
        text = line.decode(errors="replace").strip()
        if not text:
            return None
        if text.startswith("["):
            return self._short(text)
        try:
            event = from_json(text)
        except ConfigError as error:
            if _is_torn(text):
                raise Torn from None
            raise self._newer() or error from None
        if isinstance(event, LogStarted):
            self.schema = event.schema
            return None
        self._steps.whole(event)
        return event

    def _short(self, text: str) -> Event | None:
        try:
            items = json.loads(text)
        except ValueError:
            raise Torn from None
        except RecursionError:
            raise ConfigError("the line is nested too deeply; expected an event. Check that this is a log.") from None
        event = self._steps.short(items)
        if event is None:
            if newer := self._newer():
                raise newer
            raise Torn
        return event

    def _newer(self) -> ConfigError | None:
        if self.schema <= SCHEMA:
            return None
        return ConfigError(
            f"the log's schema is {self.schema}; expected {SCHEMA} or less. It was written by a newer version of "
            f"swell: read it with that version."
        )


def _is_torn(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return True
    except RecursionError:
        return False  # complete, and no event
    return False
