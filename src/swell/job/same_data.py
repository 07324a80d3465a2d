"""Replicas make sure that they train on the same data, before the first step of each epoch and of each world."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from swell.data.fingerprint import data_fingerprint
from swell.errors import ConfigError, DisagreementError
from swell.job.peers import Peers

CONTENT = "the content of the data set"


class SameData:
    """Compares fingerprints of the data among the replicas.

    Replicas share one order of samples, so each must find the same sample at the same place. A worker that joins with
    other data is refused, and the others go on without it. Where all replicas begin together, all of them raise.
    """

    def __init__(self, fingerprints: Callable[[], dict[str, str]]) -> None:
        self._fingerprints = fingerprints
        self._compared: tuple[int, int] | None = None  # the world and the epoch of the last comparison

    def compare(self, peers: Peers, *, epoch: int) -> None:
        """Raise ``DisagreementError`` if this replica has other data than the replicas that were here before it."""
        now = peers.generation, epoch
        if self._compared == now or peers.size == 1:
            self._compared = now
            return
        own = self._fingerprints()
        message = json.dumps({"here": self._compared is not None, "data": own})
        replies = [json.loads(reply) for reply in peers.collective.gather_text(message)]
        before = [rank for rank, reply in enumerate(replies) if reply["here"]]
        others = before or range(peers.size)
        for rank in others:
            for name, value in replies[others[0]]["data"].items():
                if replies[rank]["data"].get(name, value) != value:
                    raise _disagreement(name, others[0], rank)
        for name, value in replies[others[0]]["data"].items():
            if own.get(name, value) != value:
                raise _disagreement(name, others[0], peers.rank)
        self._compared = now


def content_fingerprint(dataset: Any, given: str | Callable[[], str] | None) -> Callable[[], dict[str, str]]:
    """What replicas compare of a map-style data set: what the user gave, or else what the data set holds in memory."""
    if given is not None and not isinstance(given, str) and not callable(given):
        raise ConfigError(
            f"fingerprint is {given!r}; expected text that is the same on every replica, or a function that returns "
            f"it. Leave it out to compare the tensors and arrays that the data set holds."
        )

    def fingerprints() -> dict[str, str]:
        text = data_fingerprint(dataset) if given is None else given() if callable(given) else given
        return {} if text is None else {CONTENT: str(text)}

    return fingerprints


def _disagreement(name: str, first: int, other: int) -> DisagreementError:
    remedy = (
        "Data that the script makes itself (rollouts, a replay buffer, labels, random numbers) must be the same on "
        "every replica: make it in job.share(function) inside the loop over job.epochs, or from a fixed seed, and give "
        "what grows during the run to job.register, so that workers that join receive it. If it differs on purpose, as "
        'a cache does, give job.loader(dataset, fingerprint="...").'
        if name == CONTENT
        else "A stream must be the same on every replica: give its shuffling a seed, as in dataset.shuffle(seed=0, "
        'buffer_size=1000); or give job.loader(dataset, split="dataset"), if it splits itself by replica.'
    )
    return DisagreementError(f"replicas disagree about {name}: rank {other} has another than rank {first}. {remedy}")
