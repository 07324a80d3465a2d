"""``swell plan``: the table of layouts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.cli import main
from swell.cli.plan import parse_replicas
from swell.errors import ConfigError


def test_the_table_shows_accumulation_falling_as_replicas_join(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--batch", "256", "--max-micro", "64", "--replicas", "1-8"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "replicas  accumulation  micro-batch  samples a replica",
        "       1             4           64                256",
        "       2             2           64                128",
        "       3             2           43         86, 85, 85",
        "       4             1           64                 64",
        "       5             1           52         1×52, 4×51",
        "       6             1           43         4×43, 2×42",
        "       7             1           37         4×37, 3×36",
        "       8             1           32                 32",
    ]


def test_worlds_that_do_not_fit_are_shown_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--batch", "1000", "--min-micro", "100", "--replicas", "10,11"]) == 0
    shown = capsys.readouterr().out
    assert "does not fit" in shown
    assert "On 11: " in shown and "11 replicas" in shown


def test_the_status_tells_a_script_that_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--batch", "3", "--replicas", "4"]) == 2
    assert "does not fit" in capsys.readouterr().out


def test_json_holds_every_sample_of_the_step_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--batch", "100", "--max-micro", "16", "--replicas", "3,200", "--json"]) == 0
    fits, fails = json.loads(capsys.readouterr().out)
    micros = [micro for share in fits["shares"] for micro in share]
    assert sorted(at for micro in micros for at in range(micro["offset"], micro["offset"] + micro["size"])) == [
        *range(100)
    ]
    assert (fails["feasible"], "200 replicas" in fails["reason"]) == (False, True)


def test_twice_the_speed_is_twice_the_share(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--batch", "90", "--capacity", "2,1"]) == 0
    assert "60, 30" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--batch 0", "global_batch"),
        ("--batch 8 --min-micro 3 --max-micro 2", "min_micro"),
        ("--batch 8 --replicas 0-3", "--replicas is '0-3'"),
        ("--batch 8 --replicas 4-2", "--replicas is '4-2'"),
        ("--batch 8 --replicas two", "--replicas is 'two'"),
        ("--batch 8 --capacity fast,slow", "--capacity is 'fast,slow'"),
        ("--batch 8 --capacity 1,2 --replicas 2", "--capacity and --replicas"),
    ],
)
def test_a_request_that_can_never_work_says_how_to_mend_it(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *line.split()]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)


@given(st.sets(st.integers(1, 500), min_size=1))
def test_a_list_of_replicas_is_read_in_order_however_it_is_written(numbers: set[int]) -> None:
    assert parse_replicas(",".join(map(str, numbers))) == sorted(numbers)
    low, high = min(numbers), max(numbers)
    assert parse_replicas(f"{low}-{high}") == list(range(low, high + 1))


@given(st.text(max_size=8))
def test_any_text_is_a_list_of_replicas_or_refused(text: str) -> None:
    try:
        assert parse_replicas(text)
    except ConfigError as error:
        assert "--replicas" in str(error)
