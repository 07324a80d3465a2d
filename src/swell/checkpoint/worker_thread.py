"""A thread beside the training thread: one piece of work at a time, its result collected on the training thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Completion(Generic[Result]):
    """A piece of work that has ended: its result, or the exception that ended it."""

    result: Result | None
    error: Exception | None


class WorkerThread(Generic[Result]):
    """Starts a thread for each piece of work. It is no daemon, so the interpreter waits for it before it exits."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._completion: Completion[Result] | None = None

    @property
    def busy(self) -> bool:
        """Whether work is running, or its completion was not collected yet."""
        return self._thread is not None

    def start(self, work: Callable[[], Result]) -> None:
        """Start the work; the completion of the previous work must have been collected."""
        assert self._thread is None, "collect the previous completion first"
        self._completion = None
        self._thread = threading.Thread(target=self._run, args=(work,), name=self._name)
        self._thread.start()

    def collect(self) -> Completion[Result] | None:
        """The completion of work that has ended, once; None while it runs, and if there was none."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread.join()
        self._thread = None
        return self._completion

    def wait(self) -> None:
        """Return once no work is running."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, work: Callable[[], Result]) -> None:
        try:
            self._completion = Completion(work(), None)
        except Exception as error:
            self._completion = Completion(None, error)
