"""One piece of work at a time beside the training thread, its outcome handed over on the training thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Result]):
    """What came of a piece of work: its result, or the exception it ended with."""

    result: Result | None
    error: Exception | None


class Background(Generic[Result]):
    """A thread for each piece of work. It is no daemon: an interpreter that ends waits for the work to be done."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._outcome: Outcome[Result] | None = None

    @property
    def busy(self) -> bool:
        """Whether work is under way, or its outcome was not taken yet."""
        return self._thread is not None

    def start(self, work: Callable[[], Result]) -> None:
        """Begin; the outcome of the work before must have been taken."""
        assert self._thread is None, "take the outcome of the work before"
        self._outcome = None
        self._thread = threading.Thread(target=self._run, args=(work,), name=self._name)
        self._thread.start()

    def take(self) -> Outcome[Result] | None:
        """The outcome of work that has ended, once; None while it is under way, or when there was none."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread.join()
        self._thread = None
        return self._outcome

    def wait(self) -> None:
        """Return once no work is under way."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, work: Callable[[], Result]) -> None:
        try:
            self._outcome = Outcome(work(), None)
        except Exception as error:
            self._outcome = Outcome(None, error)
