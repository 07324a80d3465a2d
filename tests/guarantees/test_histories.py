"""Guarantees 2, 3 and 4 over random histories without processes: the job's own arithmetic, any world, any crash.

Replicas here keep what real ones keep (ledger, pace, how far they have come) and do what ``swell.job`` does: agree on a
step, lay it out, commit it, catch up with whoever came furthest, save and resume. What fails is chosen at random: any
replicas, before a step, in the middle of its exchange (so that some have it and others not), or all of them at once.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from swell.core.ledger import Ledger
from swell.core.order import Shuffled
from swell.core.protocols import Policy, Rule
from swell.core.types import ScaleState
from swell.loop.pace import Pace
from swell.policies import Clamp, Fixed, Ramp, Schedule, Trace
from swell.rules import as_rule

EPOCHS = 2


@dataclass
class Replica:
    """What one replica holds; ``path`` is what it knows of the run: for each step its samples, batch and factors."""

    ledger: Ledger
    pace: Pace
    path: list[tuple[Any, ...]] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        held = {"ledger": self.ledger.state_dict(), "pace": self.pace.state_dict(), "path": self.path}
        return copy.deepcopy(held)

    def load(self, state: dict[str, Any]) -> None:
        self.ledger.load_state_dict(state["ledger"])
        self.pace.load_state_dict(copy.deepcopy(state["pace"]))
        self.path = list(state["path"])
        self.pace.enter_world()


@dataclass(frozen=True)
class Run:
    """The settings every replica was given."""

    samples: int
    seed: int
    policy: Policy
    rule: Rule
    micro: int

    def replica(self) -> Replica:
        pace = Pace(self.policy, micro=self.micro, constant_micro=False, capacity=None)
        return Replica(Ledger(self.samples, seed=self.seed), pace)

    def step(self, replica: Replica, replicas: int) -> tuple[Any, int] | None:
        """The plan of the next step, as this replica makes it by itself; None at the end of the run."""
        ledger = replica.ledger
        if ledger.remaining == 0:
            ledger.next_epoch()
        if ledger.epoch >= EPOCHS:
            return None
        place = {"samples": ledger.samples, "epoch": ledger.epoch, "epoch_samples": ledger.cursor}
        lengths = {"epoch_size": self.samples, "total_samples": EPOCHS * self.samples}
        seen = replica.pace.observe(replicas=replicas, nodes=1, noise=None, **place, **lengths)
        batch = min(replica.pace.choose(seen), self.samples)
        span = ledger.next_span(batch)
        assert span is not None
        return replica.pace.lay_out(batch, span[1] - span[0], replicas=replicas, split=False), batch

    def commit(self, replica: Replica, plan: Any, batch: int) -> None:
        """What a replica does when the exchange has come through."""
        ledger, pace = replica.ledger, replica.pace
        start, before = ledger.cursor, ledger.samples
        place = {"progress": pace.progress, "samples": before}
        scale = ScaleState(scale=plan.global_batch / pace.base, base_batch=pace.base, **place)
        factors, gain = self.rule.factors(scale), self.rule.gain(scale)
        replica.path.append((ledger.epoch, start, start + plan.global_batch, batch, factors, gain, pace.progress))
        ledger.commit(start + plan.global_batch)
        pace.committed(plan, batch=batch, samples=before, gain=gain, nodes=1)


def straight(run: Run) -> list[tuple[Any, ...]]:
    """The path of one replica to which nothing happens."""
    replica = run.replica()
    while (step := run.step(replica, 1)) is not None:
        run.commit(replica, *step)
    return replica.path


def disturbed(run: Run, random: Random, most: int) -> tuple[list[tuple[Any, ...]], dict[str, int]]:
    """The path of a run whose world changes at random, and how often what happened."""
    world = [run.replica() for _ in range(random.randint(1, most))]
    saved = world[0].state()
    happened: dict[str, int] = dict.fromkeys(("resized", "lost", "all lost", "stopped", "torn"), 0)
    while True:
        plans = [run.step(replica, len(world)) for replica in world]
        if plans[0] is None:
            assert all(plan is None for plan in plans)
            return world[0].path, happened
        plan, batch = plans[0]
        assert all(other == plans[0] for other in plans), "every replica comes to the same plan by itself"
        taken = [i for share in plan.shares for m in share for i in range(m.offset, m.offset + m.size)]
        assert sorted(taken) == list(range(plan.global_batch)), "the shares are the step, each sample once"
        fate = random.random()
        if fate < 0.70:
            for replica in world:
                run.commit(replica, plan, batch)
        elif fate < 0.95:  # some are lost in the step; of the others, and of the lost, any may have committed it
            for replica in world:
                if random.random() < 0.5:
                    run.commit(replica, plan, batch)
            survivors = [replica for replica in world if random.random() < 0.6]
            happened["lost" if survivors else "all lost"] += 1
            happened["torn"] += len({len(replica.path) for replica in survivors}) > 1
            world = survivors
        else:  # stopped on notice: all save after the same step
            for replica in world:
                run.commit(replica, plan, batch)
            saved, world = world[0].state(), []
            happened["stopped"] += 1
        if not world:  # from the newest checkpoint, on however many there are
            world = [run.replica() for _ in range(random.randint(1, most))]
            for replica in world:
                replica.load(saved)
        furthest = max(world, key=lambda replica: len(replica.path))
        if random.random() < 0.2:
            wanted = random.randint(1, most)
            happened["resized"] += wanted != len(world)
            world = [*world[:wanted], *(run.replica() for _ in range(wanted - len(world)))]
            world[0] = world[0] if furthest in world else furthest
        for replica in world:
            if len(replica.path) < len(furthest.path):
                replica.load(furthest.state())
        if random.random() < 0.15:
            saved = world[0].state()


def make_policy(random: Random, base: int) -> Policy:
    """A policy that goes from the base batch up to 64 times as much; none of them looks at the world."""
    sizes = [base * random.randint(1, 64) for _ in range(5)]
    return random.choice(
        [
            Fixed(sizes[0], base=base),
            Ramp(base, max(base + 1, sizes[0]), over=random.uniform(0.3, 2), unit="epochs"),
            Schedule([(0, base), (0.4, sizes[0]), (1.1, sizes[1])], unit="epochs", base=base),
            Clamp(Trace(sizes * 500, base=base), low=base, high=64 * base),
        ]
    )


RULES = ["constant", "linear", "root", "adam-sde", "legw"]


@settings(max_examples=1000)
@given(seed=st.integers(0, 2**32))
def test_after_any_history_every_sample_was_committed_once_in_one_order_with_the_factors_of_a_straight_path(
    seed: int,
) -> None:
    random = Random(seed)
    base, most = random.randint(1, 6), random.randint(1, 16)
    samples = random.randint(64 * base, 64 * base + 200)
    base = max(base, most)  # every world can be fed at the base batch
    rule = as_rule(random.choice(RULES))
    run = Run(samples, random.randrange(100), make_policy(random, base), rule, micro=random.randint(1, 64))
    path, happened = disturbed(run, random, most)
    for name in happened:
        event(f"{name}: {happened[name] > 0}")
    orders = [Shuffled(samples, seed=run.seed, epoch=epoch) for epoch in range(EPOCHS)]
    taken = [index for epoch, start, stop, *_ in path for index in orders[epoch].indices(start, stop).tolist()]
    whole = [index for order in orders for index in order.indices(0, samples).tolist()]
    assert taken == whole, "none lost, none repeated, one order"
    assert path == straight(run), "batches, factors, gains and progress as if nothing had happened"
