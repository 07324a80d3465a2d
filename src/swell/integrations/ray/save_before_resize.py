"""For those who stay with Ray Train's own trainers: the job saves before Ray restarts the workers for another size."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import logging
import threading
from typing import Any

import ray
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.context import get_train_context

from swell.runtime.notices import Notices

_LOG = logging.getLogger(__name__)
_EVERY_S = 0.1  # between two looks at whether a resize or a drain is announced
_SPARE_S = 5.0  # for the answers of the workers, beyond their time to save


class SaveBeforeResize(ControllerCallback, WorkerGroupCallback):
    """Lets all workers of a ``TorchTrainer`` save and stop before Ray Train resizes them, so no step is done again.

    Ray Train ends every process when it changes the number of workers, wherever training is at that moment. Give this
    to ``RunConfig(callbacks=[...])``, and ``notices=swell.ray.SaveBeforeResize.notices()`` to the job in the training
    function. ``timeout_s`` is the longest time that Ray waits for the save.
    """

    def __init__(self, *, timeout_s: float = 60.0) -> None:
        self._timeout_s = timeout_s
        self._group: Any = None

    @staticmethod
    def notices() -> Notices:
        """Notices for a job in a training function: a resize, or a node that Ray drains. Call it in the function."""
        request = _Request.renew()

        def ray_resizes_or_drains() -> bool:
            # The public call is a barrier over all workers; the job votes by itself, so the local value is enough.
            return request.asked.is_set() or get_train_context().preemption_context.preemption_info is not None

        return Notices(signals=(), watch=ray_resizes_or_drains, every_s=_EVERY_S)

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Ray Train has started the workers."""
        self._group = worker_group

    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        """Ray Train ends the workers."""
        self._group = None

    def before_controller_execute_resize_decision(self, resize_decision: Any) -> None:
        """Ray Train has decided to resize and has not ended a worker yet: all save and stop, if all are well."""
        group = self._group
        status = None if group is None else group.get_latest_poll_status()
        if group is None or (status is not None and status.errors):  # those who live wait for those who do not
            return
        saved = [worker.execute_async(_save_and_stop, self._timeout_s) for worker in group.get_workers()]
        try:
            late = not all(ray.get(saved, timeout=self._timeout_s + _SPARE_S))
        except ray.exceptions.RayError as error:
            _LOG.warning("swell: a worker could not be asked to save before the resize (%s)", error)
        else:
            if late:
                _LOG.warning("swell: not all workers have saved within %g s; steps may be repeated", self._timeout_s)


class _Request:
    """Between the main thread of a worker, where Ray asks, and the thread in which the function trains."""

    newest: _Request | None = None

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.thread = threading.current_thread()

    @classmethod
    def renew(cls) -> _Request:
        cls.newest = cls()
        return cls.newest


def _save_and_stop(timeout_s: float) -> bool:
    """On a worker: ask the job to save, and wait until its thread has ended; whether it has."""
    from swell.integrations.ray.save_before_resize import _Request  # Ray may have copied this function by value

    request = _Request.newest
    if request is None:
        return False
    request.asked.set()
    request.thread.join(timeout_s)
    return not request.thread.is_alive()
