"""The law of step times: what it is, how it moves, what it refuses."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.step_time import GAMMA, Params, predict, step_seconds, table, to_params, to_theta
from swell.errors import ConfigError
from tests.reference import step_time as twin

seconds = st.floats(1e-6, 10.0)
laws = st.builds(
    Params,
    alpha_c=seconds,
    beta_c=seconds,
    alpha_r=seconds,
    beta_r=seconds,
    alpha_n=seconds,
    beta_n=seconds,
    gamma=st.floats(*GAMMA),
    alpha_s=seconds,
)
steps = st.fixed_dictionaries(
    {
        "replicas": st.integers(1, 64),
        "nodes": st.integers(1, 8),
        "micro_batch": st.integers(1, 4096),
        "accumulation": st.integers(1, 32),
    }
)


@given(law=laws, step=steps)
def test_the_vectorised_law_is_the_law_as_written(law: Params, step: dict[str, int]) -> None:
    assert float(predict(law, **step)) == pytest.approx(twin.step_seconds(law, **step), rel=1e-9)


@given(law=laws, one=steps, other=steps)
def test_arguments_are_broadcast(law: Params, one: dict[str, int], other: dict[str, int]) -> None:
    both = {name: np.array([one[name], other[name]]) for name in one}
    assert predict(law, **both).tolist() == [float(predict(law, **one)), float(predict(law, **other))]
    assert predict(law, **{**one, "micro_batch": np.ones((2, 1, 3))}).shape == (2, 1, 3)


@given(law=laws, step=steps, axis=st.sampled_from(["micro_batch", "accumulation"]))
def test_more_samples_take_longer(law: Params, step: dict[str, int], axis: str) -> None:
    more = {**step, axis: step[axis] + 1}
    assert predict(law, **more) >= predict(law, **step) * (1 - 1e-12)  # a long exchange may hide all of it
    open_law = dataclasses.replace(law, gamma=1.0)  # hides nothing
    assert predict(open_law, **more) > predict(open_law, **step)


@given(law=laws, step=steps)
def test_exchange_costs_between_what_the_computing_hides_and_all_of_it(law: Params, step: dict[str, int]) -> None:
    alone = predict(dataclasses.replace(law, alpha_r=0, beta_r=0, alpha_n=0, beta_n=0), **step)
    whole = predict(dataclasses.replace(law, gamma=1.0), **step)
    assert alone * (1 - 1e-12) <= predict(law, **step) <= whole * (1 + 1e-12)


@given(law=laws, step=steps)
def test_the_slopes_are_those_of_the_logarithm(law: Params, step: dict[str, int]) -> None:
    _, rows = table(*step.values())
    theta = to_theta(law)
    theta[7] = min(max(theta[7], 1.001), 9.999)
    _, slopes = step_seconds(theta, rows)
    for column, slope in enumerate(slopes[0]):
        small = np.zeros(8)
        small[column] = 1e-5
        up, down = (math.log(step_seconds(theta + sign * small, rows)[0][0]) for sign in (1, -1))
        assert slope == pytest.approx((up - down) / 2e-5, rel=1e-3, abs=1e-6)


@given(law=laws)
def test_constants_survive_the_way_to_the_fitted_vector_and_back(law: Params) -> None:
    assert dataclasses.astuple(to_params(to_theta(law))) == pytest.approx(dataclasses.astuple(law))


@pytest.mark.parametrize(
    "constants",
    [
        {"alpha_c": -1.0, "beta_c": 1.0},
        {"alpha_c": 0.0, "beta_c": 0.0},
        {"alpha_c": math.nan, "beta_c": 1.0},
        {"alpha_c": 1.0, "beta_c": math.inf},
        {"alpha_c": 1.0, "beta_c": 1.0, "gamma": 0.5},
        {"alpha_c": 1.0, "beta_c": 1.0, "gamma": 11.0},
    ],
    ids=str,
)
def test_constants_that_cannot_be_are_refused(constants: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Params(**constants)
