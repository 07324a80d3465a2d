"""The world of a worker that ``swell run`` started: formed again in place whenever workers come, go or die."""

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
from swell.runtime.at_exit import AtExit
from swell.runtime.collective import Alone, TorchCollective
from swell.runtime.environment import Environment
from swell.runtime.peer_failures import is_peer_failure, reason_of
from swell.runtime.process_groups import (
    abort_default_group,
    choose_backend,
    choose_device,
    drop_default_group,
    join_default_group,
    keep_for_ever,
    leave_default_group,
    set_timeout,
)
from swell.runtime.rendezvous import RendezvousStore, SupersededError
from swell.runtime.sockets import Connections
from swell.runtime.standard_output import make_output_patient
from swell.runtime.strikes import take_strikes
from swell.runtime.supervisor_link import Dismissed, SupervisorLink
from swell.supervisor.channel import Channel
from swell.supervisor.generation import Call
from swell.supervisor.notice import Notice
from swell.supervisor.private_folder import LOCK_NAME
from swell.supervisor.sizes import to_runs
from swell.supervisor.supervision import is_locked

# The accepting side of a gloo connection waits 5 times this long for a peer that died before it connected, and nothing
# can interrupt it. All members are present when they begin to connect, so the first attempt may be short; after each
# failure the time is doubled.
_CONNECT_S = 0.2
_LONGEST_S = 120.0  # for connecting to all others, without a word meanwhile


class ElasticWorld:
    """Keeps this process and its memory while the group around it changes.

    A new worker belongs to no group until its first call of ``reform``, so it can import and build its model while the
    others train. Every call of ``reform`` waits for the supervisor's newest generation and forms it with its members.
    """

    elastic = True

    def __init__(
        self,
        link: SupervisorLink,
        *,
        device: torch.device,
        backend: str,
        timeout_s: float,
        address: str = "127.0.0.1",
        run_lock: str = "",
    ) -> None:
        self.device = device
        self.member = link.member  # this worker's name in the run; unlike its rank it never changes
        self.generation = 0
        self.nodes = 1  # machines of the present members
        self.interim = False
        self._link = link
        self._backend = backend
        self._address = address  # by which members on other machines reach this one
        self._run_lock = run_lock  # the file that the run's supervisor keeps locked
        self._timeout_s = timeout_s
        self._collective: TorchCollective | Alone | None = None
        self._size = 0  # of the present group
        self._meeting = ""  # the file beside which those who are left alone decide who goes on
        self._connections = Connections()
        self._passed = 0  # newest generation this worker was in or gave up: it waits for a newer one
        self._stores: list[RendezvousStore] = []  # torch keeps only the C++ half alive
        self._excepthook = sys.excepthook
        self._lock = threading.Lock()
        self._closed = False
        self._end = AtExit(self._leave_at_exit)
        link.on_generation = self._hear
        link.on_orphaned = self._cut

    @property
    def collective(self) -> TorchCollective | Alone:
        """The collective of the present members; there is none before the first ``reform``."""
        if self._collective is None:
            raise WorldError(
                "this worker belongs to no group; expected reform() first. Call it once the model is built, and again "
                "after every loss."
            )
        return self._collective

    @property
    def joined(self) -> bool:
        """Whether this worker belongs to a group."""
        return self._collective is not None

    def pending(self) -> bool:
        """Whether another generation was announced, or must be; each call also counts as progress."""
        self._link.step()
        newest = self._link.newest
        return self.interim or (newest is not None and newest.number > self.generation)

    def notice(self) -> Notice | None:
        """The notice for the whole run to stop. The loss of the supervisor counts as one.

        A worker that must leave alone learns it from ``pending`` and ``reform``.
        """
        return self._link.notice

    def leave(self, source: str) -> bool:
        """Pass on a notice that reached this worker alone; True, because the supervisor takes care of it.

        The supervisor announces a generation without this worker (``pending``), for which ``reform`` raises
        ``Dismissed``. If the others may not go on without it, the supervisor gives notice to all.
        """
        self._link.say("leave", source=source)
        return True

    def allow(self, sizes: Iterable[int], *, why: str) -> None:
        """Report the numbers of workers the job can be laid out on, and in ``why`` the bounds behind them."""
        self._link.say("allow", sizes=to_runs(sizes), why=why)

    def mark(self, doing: str) -> None:
        """A sign of progress, and what this worker does next; a worker that gives none for long is stuck."""
        self._link.main.mark(doing)

    def trouble(self, name: str, text: str) -> None:
        """Tell the owner of the run what is wrong, though training goes on; an empty text when it is right again."""
        self._link.say("trouble", name=name, text=text)

    def reform(self) -> TorchCollective | Alone:
        """Leave the present group, whole or broken, and form the newest generation with its members.

        Blocks until a generation with this worker is formed. Raises ``Dismissed``, which ends the process, if the
        others go on without it or the supervisor is gone. Where it is gone and a member was lost too, nobody forms a
        world any more: the first of those who are left goes on alone, because it has the notice to save and stop.
        """
        with self._link.main.waiting():
            try:
                collective = self._reform()
            except Dismissed:
                if not (self._link.lost and self._claim_the_rest()):
                    raise
                collective = self._go_on_alone()
        self._link.main.enter_world()
        if isinstance(collective, TorchCollective):
            collective.prepare_sums()
        return collective

    def _reform(self) -> TorchCollective:
        self._drop()
        if self._passed:
            self._link.say("left", number=self._passed)
        else:
            self._link.say("ready")
        connect_s = _CONNECT_S
        while True:
            generation = self._link.newer_than(self._passed)
            self._link.say("joined", number=generation.number)
            began_at = time.monotonic()
            try:
                with self._link.main.calling(self._longest_s(generation, connect_s)):
                    collective = self._form(generation, connect_s=connect_s)
            except (SupersededError, RuntimeError, TimeoutError) as error:
                superseded = self._link.superseded(generation.number)
                if not (superseded or isinstance(error, (SupersededError, TimeoutError)) or is_peer_failure(error)):
                    raise
                self._passed = generation.number
                self._drop()
                connect_s = min(2 * connect_s, self._timeout_s)
                if not superseded:
                    self._link.say("left", number=generation.number, why=reason_of(error))
            else:
                self._link.say("formed", number=generation.number, took_s=round(time.monotonic() - began_at, 4))
                return collective

    def _longest_s(self, generation: Call, connect_s: float) -> float:
        """How long forming a world may keep the main thread in a call; after that it is stuck."""
        if self._backend != "gloo":
            return _LONGEST_S
        return min(_LONGEST_S, 10.0 + 6 * connect_s + 0.5 * generation.size)

    def close(self, *, alone: bool = False) -> None:
        """Leave for good: together with the others, or at once while an exception is raised.

        ``alone`` says that this worker leaves while the others still train, so it waits for nobody.
        """
        if self._closed:
            return
        self._closed = True
        self._end.cancel()
        failing = sys.exc_info()[0] not in (None, SystemExit)
        if not failing:
            self._link.say("done", alone=alone and self._size > 1)
        if isinstance(self._collective, TorchCollective) and not failing and not alone:
            leave_default_group(self._collective)
            self._collective = None
        self._drop()

    def _leave_at_exit(self) -> None:
        """The script has ended without closing its job; a group with a lost or stuck member is left as it is."""
        self._link.say("done")  # an interpreter ends slowly, and the others must not wait for it in another world
        collective = self._collective
        if isinstance(collective, TorchCollective) and not (collective.lost or collective.stuck):
            drop_default_group(collective)

    def _claim_the_rest(self) -> bool:
        """Whether this worker is the first that lost its peers after the supervisor, and was in a world with them.

        Only workers of one machine can tell: on several, those who cannot reach the supervisor may just be cut off, and
        the others go on. Nor does one go on that was stopped while another supervisor has resumed the run.
        """
        if not self._size or not self._meeting or (self._run_lock and is_locked(self._run_lock)):
            return False
        claim = os.path.join(os.path.dirname(self._meeting), f"alone-{self._passed}")
        try:
            os.makedirs(os.path.dirname(claim), mode=0o700, exist_ok=True)
            # Where a cleaner had removed the folder, it is a new one: with a lock that nobody holds it is found and
            # removed by the next supervisor.
            os.close(os.open(os.path.join(os.path.dirname(claim), LOCK_NAME), os.O_CREAT | os.O_WRONLY, 0o600))
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError:
            return False
        return True

    def _go_on_alone(self) -> Alone:
        with self._lock:
            self._collective = Alone()
            self._size = self.nodes = 1
            self.generation, self.interim = self._passed + 1, False
        return self._collective

    def _form(self, generation: Call, *, connect_s: float) -> TorchCollective:
        assert generation.rank is not None
        store = RendezvousStore(
            self._link,
            generation.number,
            give_up=lambda: self._link.superseded(generation.number),
            timeout_s=self._timeout_s,
        )
        self._stores.append(store)
        if getattr(sys.excepthook, "__name__", "") == "_distributed_excepthook":
            sys.excepthook = self._excepthook  # torch adds one more "[rank0]: " per group
        connections = Connections()
        try:
            with connections.recorded():
                collective = join_default_group(
                    backend=self._backend,
                    device=self.device,
                    timeout_s=connect_s if self._backend == "gloo" else self._timeout_s,
                    store=store.for_backend(
                        self._backend, rank=generation.rank, file=generation.meeting, address=self._address
                    ),
                    rank=generation.rank,
                    size=generation.size,
                )
        except BaseException:
            connections.sever()
            raise
        set_timeout(collective, timedelta(seconds=self._timeout_s))
        collective.waiting, collective.poll = self._link.main.waiting, self._link.main.poll
        with self._lock:
            self._connections = connections
            self._collective = collective
            self._size, self.nodes = generation.size, generation.nodes
            self._meeting = generation.meeting
            self.generation, self.interim = generation.number, generation.interim
        self._passed = generation.number
        if self._link.superseded(generation.number):  # only a loss does that before all have formed it
            raise SupersededError("a member was lost while the world was formed")
        return collective

    def _drop(self) -> None:
        """Cut every connection of the present group, so that no neighbour waits for this worker, and forget it."""
        with self._lock:
            self._connections.sever()
            if isinstance(self._collective, TorchCollective):
                self._collective.lost = True  # whoever still waits for an exchange of it waits in vain
                if self._backend == "gloo":
                    self._collective.settle()
                if self._collective.stuck:
                    keep_for_ever(self._collective)
            self._collective = None
        abort_default_group(self._backend)

    def _hear(self, generation: Call) -> None:
        """In the link's thread: free the main thread from a collective that cannot finish because a member died."""
        if self.generation in generation.broken:
            self._cut()

    def _cut(self) -> None:
        """In the link's thread: end every exchange with the present members, who do not answer any more."""
        with self._lock:
            if not isinstance(self._collective, TorchCollective):
                return
            self._connections.sever()
            self._collective.lost = True
            if self._backend == "nccl":
                with contextlib.suppress(Exception):  # the main thread reports the group's error
                    self._collective.group._get_backend(self.device).abort()


def open_elastic_world(
    environment: Environment, device: torch.device | str, *, backend: str | None, timeout_s: float
) -> ElasticWorld:
    """The world of a worker that the supervisor started."""
    descriptor, member = environment.swell_channel, environment.swell_member
    assert descriptor is not None and member is not None
    own_device = choose_device(device, local_rank=environment.swell_slot or 0, backend=backend)
    try:
        if not os.get_inheritable(descriptor):  # the supervisor makes it inheritable; the first owner takes that back
            raise WorldError(
                "the elastic world of this worker is open already; expected one per process. Open it once, in the "
                "process that `swell run` started, and pass it on."
            )
        os.set_inheritable(descriptor, False)
        end = socket.socket(fileno=descriptor)
    except OSError as error:
        raise WorldError(
            f"SWELL_CHANNEL is {descriptor}; expected the descriptor of a connection to a supervisor ({error}). Start "
            f"the script with `swell run`, or unset SWELL_CHANNEL."
        ) from error
    make_output_patient()
    take_strikes(environment)
    link = SupervisorLink(Channel(end), member, beat_s=environment.swell_beat_s or 1.0)
    supervision = environment.supervision
    facts = {"backend": choose_backend(own_device, backend), "timeout_s": timeout_s}
    facts |= {"run_lock": "" if supervision is None else supervision.lock}
    return ElasticWorld(link, device=own_device, address=environment.swell_address or "127.0.0.1", **facts)
