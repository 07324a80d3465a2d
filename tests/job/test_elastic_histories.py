"""Random histories with real processes: joins, leavers, kills, hangs, notices, stops; and nothing is lost or repeated.

Each is a run of its own with several events. ``SWELL_HISTORIES`` says how many there are, ``SWELL_HISTORIES_SEED``
which ones.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from swell.runtime.faults import fail_at
from tests.job.elastic_history import EPOCHS, History, N, check, play

HISTORIES = int(os.environ.get("SWELL_HISTORIES", "50"))
SEED = int(os.environ.get("SWELL_HISTORIES_SEED", "0"))
STEPS = 36  # of an undisturbed run

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def random_history(seed: int) -> History:
    """Up to four faults at any point, up to three changes of size, and now and then a stop."""
    random = Random(seed)
    most = random.choice([2, 3, 3, 4])
    points = ["backward", "reduce", "reduce", "commit", "save", "join"]
    kinds = ["kill"] * 6 + ["term", "stop", "exception", "exit", "oom"]
    faults = [
        fail_at(random.randrange(most), random.randrange(STEPS), random.choice(points), random.choice(kinds))
        for _ in range(random.randint(1, 4))
    ]
    resizes = [(random.randrange(1, STEPS), random.randint(1, most)) for _ in range(random.randint(0, 3))]
    stops = [random.randrange(3, STEPS - 3)] if random.random() < 0.25 else []
    return History(
        start=random.randint(1, most),
        most=most,
        faults=tuple(faults),
        resizes=tuple(sorted(resizes)),
        stops=tuple(stops),
        options={"evaluate": True} if random.random() < 0.5 else {},
    )


def with_votes(history: History, votes: str) -> History:
    """The same, where votes travel in another way."""
    return replace(history, options={**history.options, "votes": votes})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    folders = {evaluate: tmp_path_factory.mktemp("undisturbed") for evaluate in (False, True)}
    for evaluate, folder in folders.items():
        play(folder, History(start=1, most=1, options={"evaluate": True} if evaluate else {}))
    return folders


@pytest.mark.parametrize("seed", range(SEED, SEED + HISTORIES))
def test_after_any_history_the_run_is_the_undisturbed_one(
    tmp_path: Path, undisturbed: dict[bool, Path], seed: int
) -> None:
    history = with_votes(random_history(seed), ("apart", "last", "only")[seed % 3])
    print(f"{history}; {N * EPOCHS} samples; faults: {[str(fault) for fault in history.faults]}")
    for record in play(tmp_path, history):
        print(f"{record['kind']} of rank {record['rank']} in {record['point']} at step {record['at_step']}")
    check(tmp_path, undisturbed["evaluate" in history.options])
