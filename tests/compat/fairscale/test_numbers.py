"""Our AdaScale says what FairScale's says, to 1e-8, in every mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.compat.fairscale.optim import AdaScale
from swell.core.moments import estimate, gain
from swell.core.types import Moments
from tests.golden.fairscale import scenarios
from tests.reference.fairscale import fairscale_gain, fairscale_moments
from tests.workers import run_workers

GOLDEN = json.loads((Path(scenarios.__file__).with_name("numbers.json")).read_text())["numbers"]
SIZES = st.floats(0, 1e6)


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_gains_and_weights_are_those_recorded_with_fairscale(name: str) -> None:
    run, arguments = scenarios.SCENARIOS[name]
    for ours, theirs in zip(run(AdaScale, **arguments), GOLDEN[name], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-8)


def replica(collective: Any, names: list[str]) -> dict[str, scenarios.Rows]:
    place = {"rank": collective.rank, "replicas": collective.size}
    return {n: scenarios.replicated(AdaScale, **place, accumulation=scenarios.REPLICATED[n][1]) for n in names}


@pytest.mark.distributed
@pytest.mark.parametrize("replicas", [2, 3])
def test_gains_under_ddp_are_those_recorded_with_fairscale_on_every_rank(replicas: int) -> None:
    names = [name for name, (size, _) in scenarios.REPLICATED.items() if size == replicas]
    for results in run_workers(replicas, replica, names):
        for name in names:
            for ours, theirs in zip(results[name], GOLDEN[name], strict=True):
                assert ours == pytest.approx(theirs, rel=1e-8)


@given(local=SIZES, total=SIZES, scale=st.floats(1, 1e3), count=st.integers(2, 64))
def test_sqr_and_var_are_the_cores_signal_and_noise_with_the_base_batch_for_a_sample(
    local: float, total: float, scale: float, count: int
) -> None:
    sqr, var = fairscale_moments(local, total, scale=scale, count=count)
    moments = estimate(local / count, total, count=count, batch=scale)
    size = max(local, total, 1.0)
    assert moments.signal == pytest.approx(sqr, abs=1e-12 * size)
    assert moments.noise == pytest.approx(var, abs=1e-12 * size * scale)


@given(sqr=SIZES, var=st.floats(1e-6, 1e6), scale=st.floats(1, 1e3))
def test_its_gain_is_the_cores_gain_with_the_base_batch_for_a_sample(sqr: float, var: float, scale: float) -> None:
    ours = gain(scale, Moments(signal=sqr, noise=var), base_batch=1)
    assert ours == pytest.approx(fairscale_gain(sqr, var, scale=scale), rel=1e-9)
