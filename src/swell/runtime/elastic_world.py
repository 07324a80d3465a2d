"""The world of a worker that ``swell run`` started: formed anew in place whenever workers come, go or die."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable
from datetime import timedelta

import torch

from swell.errors import WorldError
from swell.runtime.collective import TorchCollective
from swell.runtime.environment import Environment
from swell.runtime.peer_failures import is_peer_failure, reason_of
from swell.runtime.process_groups import (
    abort_default_group,
    choose_backend,
    choose_device,
    join_default_group,
    keep_for_ever,
    leave_default_group,
    set_timeout,
)
from swell.runtime.rendezvous import RendezvousStore, SupersededError
from swell.runtime.sockets import Connections
from swell.runtime.supervisor_link import SupervisorLink
from swell.supervisor.channel import Channel
from swell.supervisor.generation import Generation
from swell.supervisor.notice import Notice

# gloo lets the accepting side of a connection wait 5 times as long for a peer that died before it connected, and
# nothing can call it back. All members are there when they begin to connect, so the first attempt may be short; each
# one that fails is followed by one of twice the time.
_CONNECT_S = 0.2


class ElasticWorld:
    """Keeps this process and whatever it holds in memory while the group round it changes.

    A new worker belongs to no group until it calls ``reform`` for the first time, so it can import and build its model
    while the others go on training. ``reform`` then, and whenever it is called again, waits for the supervisor's newest
    generation and forms it with the other members.
    """

    elastic = True
    nodes = 1

    def __init__(self, link: SupervisorLink, *, device: torch.device, backend: str, timeout_s: float) -> None:
        self.device = device
        self.member = link.member  # this worker's name in the run; a rank changes, this does not
        self.generation = 0
        self.interim = False
        self._link = link
        self._backend = backend
        self._timeout_s = timeout_s
        self._collective: TorchCollective | None = None
        self._members: tuple[int, ...] = ()  # of the present group
        self._connections = Connections()
        self._passed = 0  # the newest generation this worker was in or gave up: it waits for a newer one
        self._stores: list[RendezvousStore] = []  # torch keeps only the C++ half alive
        self._excepthook = sys.excepthook
        self._lock = threading.Lock()
        self._closed = False
        link.on_generation = self._hear

    @property
    def collective(self) -> TorchCollective:
        """What the present members speak over; there is none before the first ``reform``."""
        if self._collective is None:
            raise WorldError(
                "this worker belongs to no group yet: call reform() once everything is built, and after every loss."
            )
        return self._collective

    @property
    def joined(self) -> bool:
        """Whether this worker belongs to a group."""
        return self._collective is not None

    def pending(self) -> bool:
        """Whether another generation was announced, or must be; also counts as a sign of progress."""
        self._link.step()
        newest = self._link.newest
        return self.interim or (newest is not None and newest.number > self.generation)

    def notice(self) -> Notice | None:
        """Whether the whole run is to stop. A supervisor that is gone counts, for nobody could help any more.

        A worker that is to leave alone hears of it by ``pending`` and ``reform``.
        """
        return self._link.notice

    def leave(self, source: str) -> bool:
        """Pass on a notice that reached this worker alone; True, for the supervisor takes care of it.

        It announces a generation without this worker (``pending``), in which ``reform`` raises ``Dismissed``; or, where
        the others may not go on without it, gives notice to all.
        """
        self._link.say("leave", source=source)
        return True

    def allow(self, sizes: Iterable[int], *, why: str) -> None:
        """Tell the supervisor which numbers of workers the job can be laid out on, and by which of its bounds."""
        self._link.say("allow", sizes=sorted(set(sizes)), why=why)

    def reform(self) -> TorchCollective:
        """Leave the present group, whole or broken, and form the newest generation with its members.

        Blocks until a generation with this worker is formed. Raises ``Dismissed``, which ends the process, when the
        others go on without it or the supervisor is gone.
        """
        self._drop()
        if self._passed:
            self._link.say("left", number=self._passed)
        else:
            self._link.say("ready")
        connect_s = _CONNECT_S
        while True:
            generation = self._link.newer_than(self._passed)
            self._link.say("joined", number=generation.number)
            began = time.monotonic()
            try:
                collective = self._form(generation, connect_s=connect_s)
            except (SupersededError, RuntimeError, TimeoutError) as error:
                in_vain = self._link.superseded(generation.number)
                if not (in_vain or isinstance(error, (SupersededError, TimeoutError)) or is_peer_failure(error)):
                    raise
                self._passed = generation.number
                self._drop()
                connect_s = min(2 * connect_s, self._timeout_s)
                if not in_vain:
                    self._link.say("left", number=generation.number, why=reason_of(error))
            else:
                self._link.say("formed", number=generation.number, took_s=round(time.monotonic() - began, 4))
                return collective

    def close(self) -> None:
        """Leave for good: with the others at the end of training, at once when an exception is on its way."""
        if self._closed:
            return
        self._closed = True
        failing = sys.exc_info()[0] not in (None, SystemExit)
        if not failing:
            self._link.say("done")
        if self._collective is not None and not failing:
            leave_default_group(self._collective)
            self._collective = None
        self._drop()

    def _form(self, generation: Generation, *, connect_s: float) -> TorchCollective:
        rank, size = generation.members.index(self.member), len(generation.members)
        store = RendezvousStore(
            generation.rendezvous, in_vain=lambda: self._link.superseded(generation.number), timeout_s=self._timeout_s
        )
        self._stores.append(store)
        if getattr(sys.excepthook, "__name__", "") == "_distributed_excepthook":
            sys.excepthook = self._excepthook  # torch puts "[rank0]: " before every line, once more for every group
        connections = Connections()
        try:
            with connections.recorded():
                collective = join_default_group(
                    backend=self._backend,
                    device=self.device,
                    timeout_s=connect_s if self._backend == "gloo" else self._timeout_s,
                    store=store.for_backend(self._backend),
                    rank=rank,
                    size=size,
                )
        except BaseException:
            connections.sever()
            raise
        set_timeout(collective, timedelta(seconds=self._timeout_s))
        with self._lock:
            self._connections = connections
            self._collective = collective
            self._members = generation.members
            self.generation, self.interim = generation.number, generation.interim
        self._passed = generation.number
        if self._link.superseded(generation.number):  # only a loss can do that before all have formed it
            raise SupersededError("a member was lost while the world was formed")
        return collective

    def _drop(self) -> None:
        """Cut every connection of the present group, so that no neighbour waits for us, and forget it."""
        with self._lock:
            self._connections.sever()
            if self._collective is not None and self._collective.stuck:
                keep_for_ever(self._collective)
            self._collective = None
        abort_default_group(self._backend)

    def _hear(self, generation: Generation) -> None:
        """In the link's thread: free the main thread from a collective that a dead member keeps from finishing."""
        with self._lock:
            if self._collective is None or set(self._members) <= set(generation.alive):
                return
            self._connections.sever()
            self._collective.lost = True
            if self._backend == "nccl":
                with contextlib.suppress(Exception):  # the main thread reports what is wrong with the group
                    self._collective.group._get_backend(self.device).abort()


def open_elastic_world(
    said: Environment, device: torch.device | str, *, backend: str | None, timeout_s: float
) -> ElasticWorld:
    """The world of a worker that the supervisor started."""
    assert said.swell_channel is not None and said.swell_member is not None
    own = choose_device(device, local_rank=said.swell_slot or 0, backend=backend)
    try:
        if not os.get_inheritable(said.swell_channel):  # as the supervisor hands it over, until we take it
            raise WorldError(
                "the elastic world of this worker was opened before. Open it once, in the process that `swell run` "
                "started, and hand it on."
            )
        os.set_inheritable(said.swell_channel, False)
        end = socket.socket(fileno=said.swell_channel)
    except OSError as error:
        raise WorldError(
            f"SWELL_CHANNEL names descriptor {said.swell_channel}, which is no connection to a supervisor ({error}). "
            f"Start the script with `swell run`, or unset SWELL_CHANNEL."
        ) from error
    link = SupervisorLink(Channel(end), said.swell_member, beat_s=said.swell_beat_s or 1.0)
    return ElasticWorld(link, device=own, backend=choose_backend(own, backend), timeout_s=timeout_s)
