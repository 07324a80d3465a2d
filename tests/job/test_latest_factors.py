"""The factors of a step are what the rule makes of its scale and noise now, however often they were the same before."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from swell.core.types import Factors, ScaleState
from swell.job.learner import Learner
from swell.rules import AdamMeanGain, AdaScale, KeepDecayTime, Linear, MeanGain

BASE = 8
RULES = [MeanGain(), AdamMeanGain(), AdaScale(), Linear(), KeepDecayTime(AdamMeanGain(betas="follow"))]
squares = st.tuples(st.floats(0.1, 9.0), st.floats(0.1, 9.0))
events = st.tuples(
    st.sampled_from(["step", "step", "plain", "metric", "reset"]),
    squares,
    st.sampled_from([2.0, 2.0, 2.0, 2.0, 1.0, 4.0]),  # mostly as before
)


class ByProgress:
    """A rule of the user's own, which looks at the progress too."""

    def factors(self, state: ScaleState) -> Factors:
        return Factors(lr=1 + state.progress)

    def gain(self, state: ScaleState) -> float:
        return 1 + state.samples


def learner(rule: Any) -> Learner:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam([{"params": [model.weight]}, {"params": [model.bias]}])
    return Learner(model, optimizer, rule=rule, scaler=None, schedule=None, base_batch=BASE, exact=True)


@given(rule=st.sampled_from([*RULES, ByProgress()]), history=st.lists(events, min_size=10, max_size=25))
def test_any_history_gives_the_factors_that_the_rule_would_give_now(rule: Any, history: list[Any]) -> None:
    one = learner(rule)
    for place, (event, (small, big), scale) in enumerate(history):
        if event in ("plain", "metric"):
            average = getattr(one.noise, event)
            pairs = [(small + big, big), (2 * small + big, big)]
            average.update(pairs, count=2, batch=int(BASE * scale), samples_between=int(BASE * scale))
        elif event == "reset":
            one.noise.reset()
        else:
            where = {"scale": scale, "progress": float(place), "samples": place * BASE}
            groups, total = one.states(**where)
            expected = tuple(rule.factors(state) for state in groups), rule.gain(total)
            assert one.factors(**where) == expected
