"""A shuffle with random access: a permutation, the same for ever, and as random as a shuffle should be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from swell.core.hashing import hash_positions
from swell.core.permutation import LARGEST, permute
from swell.errors import ConfigError
from tests.reference.permutation import permuted, splitmix64

KEYS = st.integers(0, 2**64 - 1)
ALPHA = 1e-4  # of every chi-square test; keys are fixed, so a test that passes once passes always


def shuffle(n: int, key: int) -> np.ndarray:
    return permute(np.arange(n), n=n, key=key)


@given(n=st.integers(1, 5000), key=KEYS)
def test_every_number_comes_exactly_once(n: int, key: int) -> None:
    assert np.array_equal(np.sort(shuffle(n, key)), np.arange(n))


@given(n=st.integers(1, LARGEST), key=KEYS, data=st.data())
def test_each_position_goes_where_the_slow_twin_puts_it(n: int, key: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), max_size=5))
    expected = [permuted(position, n=n, key=key) for position in positions]
    assert permute(np.array(positions, dtype=np.int64), n=n, key=key).tolist() == expected


@given(n=st.integers(1025, 2**25), key=KEYS, data=st.data())
def test_numbers_read_from_tables_are_those_that_are_hashed(n: int, key: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    expected = [permuted(position, n=n, key=key) for position in positions]
    hashed = permute(np.array(positions), n=n, key=key)
    permute(np.arange(min(n, 4096)), n=n, key=key)
    permute(np.arange(min(n, 4096)), n=n, key=key)
    assert hashed.tolist() == permute(np.array(positions), n=n, key=key).tolist() == expected


@given(n=st.integers(2, 5000), key=KEYS, data=st.data())
def test_a_part_is_the_part_of_the_whole(n: int, key: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(start, n))
    assert np.array_equal(permute(np.arange(start, stop), n=n, key=key), shuffle(n, key)[start:stop])


def test_spans_longer_than_a_block_are_permuted_like_short_ones() -> None:
    n, span = 10**9, 50_001
    whole = permute(np.arange(span), n=n, key=5)
    pieces = [permute(np.arange(at, min(at + 777, span)), n=n, key=5) for at in range(0, span, 777)]
    assert np.array_equal(whole, np.concatenate(pieces))
    assert len(np.unique(whole)) == span


def test_the_numbers_of_today_are_the_numbers_of_all_releases() -> None:
    assert shuffle(12, 0).tolist() == [5, 4, 3, 6, 1, 0, 7, 11, 8, 9, 10, 2]
    assert permute(np.array([0, 1, 1499]), n=1500, key=1).tolist() == [834, 38, 1076]
    assert permute(np.array([0, 1, 10**6 - 1]), n=10**6, key=2**64 - 1).tolist() == [739118, 744338, 104776]
    assert permute(np.array([0, 1, 10**9 - 1]), n=10**9, key=3).tolist() == [108496840, 701599624, 826471493]
    assert permute(np.array([0, 1, LARGEST - 1]), n=LARGEST, key=4).tolist() == [
        4143293800759473006,
        4153567870632531781,
        2403867298381774203,
    ]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.int64, np.uint64])
def test_positions_may_have_any_integer_type_and_shape(dtype: type) -> None:
    positions = np.arange(120, dtype=dtype).reshape(2, 3, 20)
    before = positions.copy()
    result = permute(positions, n=5000, key=9)
    assert result.dtype == np.int64
    assert result.shape == positions.shape
    assert np.array_equal(result.ravel(), permute(np.arange(120), n=5000, key=9))
    assert np.array_equal(positions, before), "the argument is left as it was"


@pytest.mark.parametrize("n", [1, 7, 5000])
def test_no_positions_give_no_numbers(n: int) -> None:
    assert permute(np.array([]), n=n, key=0).shape == (0,)


@pytest.mark.parametrize("n", range(2, 13))
def test_in_a_short_shuffle_every_number_is_equally_often_at_every_position(n: int) -> None:
    keys = 4000
    counts = np.zeros((n, n))
    for key in range(keys):
        counts[np.arange(n), shuffle(n, key)] += 1
    chi_square = ((counts - keys / n) ** 2).sum() / (keys / n)
    # Rows and columns of a permutation matrix add up to one: (n - 1)^2 degrees of freedom, scaled by (n - 1) / n.
    assert ALPHA < stats.chi2.sf(chi_square * (n - 1) / n, (n - 1) ** 2) < 1 - ALPHA


@pytest.mark.parametrize("n", [3, 4, 5])
def test_in_a_short_shuffle_every_order_is_equally_likely(n: int) -> None:
    orders, counts = np.unique([shuffle(n, key) for key in range(12_000)], axis=0, return_counts=True)
    assert len(orders) == [6, 24, 120][n - 3]
    assert ALPHA < stats.chisquare(counts).pvalue < 1 - ALPHA


@pytest.mark.parametrize("n", [1025, 2049, 5000, 65_537, 10**6, 10**9, 10**15])
def test_in_a_long_shuffle_values_are_spread_evenly_over_positions(n: int) -> None:
    bins, span = 16, 1024
    counts = np.zeros((bins, bins))
    for key in range(200):
        values = permute(np.arange(span), n=n, key=key)
        np.add.at(counts, (np.arange(span) * bins // span, values * bins // n), 1)
    edges = -(-np.arange(bins + 1) * n // bins)
    expected = counts.sum(axis=1, keepdims=True) * np.diff(edges) / n
    # Drawing without replacement makes counts more even, never less, than the chi-square of independent draws.
    assert stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), bins * (bins - 1)) > ALPHA


@pytest.mark.parametrize("n", [1025, 2049, 5000, 65_537, 10**6, 10**9, 10**15])
def test_in_a_long_shuffle_neighbours_know_nothing_of_one_another(n: int) -> None:
    bins, keys = 32, 300
    right = 2 ** (((n - 1).bit_length() + 1) // 2)  # positions this far apart share half of their bits
    for apart in (1, 2, right, right + 1):
        pair = np.arange(256)
        first = pair // apart * 2 * apart + pair % apart  # no position is in two pairs
        first = first[first + apart < n]
        gaps = []
        for key in range(keys):
            values = permute(np.stack([first, first + apart]), n=n, key=key)
            gaps.append((values[1] - values[0]) % n - 1)  # from 0 to n - 2, each equally likely
        counts = np.bincount(np.concatenate(gaps) * bins // (n - 1), minlength=bins)
        expected = counts.sum() * np.diff(-(-np.arange(bins + 1) * (n - 1) // bins)) / (n - 1)
        assert stats.chisquare(counts, expected).pvalue > ALPHA, f"positions {apart} apart"


def test_a_shuffle_has_no_serial_correlation() -> None:
    n = 100_000
    correlations = []
    for key in range(20):
        values = shuffle(n, key).astype(float)
        correlations.append(np.corrcoef(values[:-1], values[1:])[0, 1])
    assert np.abs(correlations).max() < 4 / np.sqrt(n)
    assert abs(np.mean(correlations)) < 4 / np.sqrt(20 * n)


@given(n=st.integers(1000, LARGEST), key=st.integers(0, 2**64 - 2))
def test_the_next_key_gives_another_shuffle(n: int, key: int) -> None:
    positions = np.arange(64)
    assert not np.array_equal(permute(positions, n=n, key=key), permute(positions, n=n, key=key + 1))


@given(key=KEYS)
def test_the_hash_is_splitmix64_with_random_access(key: int) -> None:
    assert hash_positions(np.arange(20), key=key).tolist() == splitmix64(key, 20)


def test_the_hash_agrees_with_the_published_numbers_of_splitmix64() -> None:
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert hash_positions(np.arange(4), key=1234567).tolist() == published


@pytest.mark.parametrize(
    ("positions", "n", "key", "message"),
    [
        ([0], 0, 0, r"n is 0\b"),
        ([0], LARGEST + 1, 0, rf"n is {LARGEST + 1}.* to {LARGEST}\b"),
        ([0], 2.0, 0, r"n is 2\.0"),
        ([0], True, 0, "n is True"),
        ([0], 5, -1, "key is -1"),
        ([0], 5, 2**64, rf"key is {2**64}.* to {2**64 - 1}\b"),
        ([5], 5, 0, "positions are 5 to 5.* 0 to 4"),
        ([-1], 5, 0, "positions are -1 to -1"),
        ([0.0], 5, 0, "positions .*float64"),
    ],
)
def test_arguments_that_cannot_work_are_refused(positions: list, n: int, key: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        permute(np.array(positions), n=n, key=key)
