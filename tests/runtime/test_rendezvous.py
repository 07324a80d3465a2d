"""Members of a generation find what the others wrote, whole, over their links to the supervisor."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from swell.runtime.rendezvous import RendezvousStore, SupersededError
from swell.runtime.supervisor_link import SupervisorLink
from swell.supervisor.channel import Channel
from swell.supervisor.generation import Generation
from swell.supervisor.meeting import Meeting


class Supervised:
    """As many links as there are members, and a supervisor that does nothing but pass on what they say."""

    def __init__(self, members: int) -> None:
        self.meeting, self.over = Meeting(), threading.Event()
        pairs = [socket.socketpair() for _ in range(members)]
        self.channels = {member: Channel(near) for member, (near, _) in enumerate(pairs, 1)}
        self.links = {member: SupervisorLink(Channel(far), member) for member, (_, far) in enumerate(pairs, 1)}
        self.announce(1)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def announce(self, number: int) -> None:
        generation = Generation(number=number, members=tuple(self.links))
        self.meeting.open(number)
        for member, call in generation.calls(self.links):
            self.channels[member].send(call.to_message())

    def store(self, member: int, *, timeout_s: float = 20.0) -> RendezvousStore:
        link = self.links[member]
        link.newer_than(0)
        return RendezvousStore(link, 1, give_up=lambda: link.superseded(1), timeout_s=timeout_s)

    def _run(self) -> None:
        while not self.over.is_set():
            ready, _, _ = select.select([channel.fileno() for channel in self.channels.values()], [], [], 0.05)
            for member, channel in self.channels.items():
                for message in (channel.receive() or []) if channel.fileno() in ready else []:
                    if message["say"] in ("set", "add"):
                        self.meeting.take(member, message)
            for receiver, news in self.meeting.news():
                for member, channel in self.channels.items():
                    if receiver in (None, member):
                        channel.send(news)


KEPT: list[Supervised] = []  # a link whose supervisor is gone ends its process, so none is closed


@pytest.fixture
def run() -> Iterator[Supervised]:
    supervised = Supervised(4)
    KEPT.append(supervised)
    yield supervised
    supervised.over.set()
    supervised.thread.join()


def test_every_member_reads_what_another_wrote(run: Supervised) -> None:
    one, other = run.store(1), run.store(2)
    one.set("prefix/a key, of any length " + "x" * 500, b"\x00\xff")
    one.set("text", "größe")
    assert other.get("prefix/a key, of any length " + "x" * 500) == b"\x00\xff"
    assert other.get("text") == "größe".encode() and not other.check(["text", "another"])
    assert one.get("text") == "größe".encode(), "also the one who wrote it"


def test_no_addition_is_lost(run: Supervised) -> None:
    stores = [run.store(member) for member in run.links]

    def add(store: RendezvousStore) -> None:
        for _ in range(20):
            store.add("count", 2)

    threads = [threading.Thread(target=add, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].add("count", 0) == 160
    stores[1].wait(["count"])


def test_a_wait_ends_when_a_newer_generation_comes_or_after_its_time(run: Supervised) -> None:
    with pytest.raises(TimeoutError, match="missing"):
        run.store(1, timeout_s=0.01).wait(["missing"], timedelta(seconds=99))
    store = run.store(1)
    timer = threading.Timer(0.1, lambda: run.announce(2))
    timer.start()
    with pytest.raises(SupersededError):
        store.get("missing")
    store.set("late", b"1")
    assert not run.store(2).check(["late"]), "nothing is passed on from an old generation"


def test_a_native_store_of_several_machines_is_kept_by_the_first_member(run: Supervised) -> None:
    stores: dict[int, object] = {}

    def make(rank: int) -> None:
        stores[rank] = run.store(rank + 1).for_backend("nccl", rank=rank, file="", address="127.0.0.1")

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    stores[0].set("id", b"abc")  # pyright: ignore[reportAttributeAccessIssue]
    assert stores[1].get("id") == b"abc"  # pyright: ignore[reportAttributeAccessIssue]
