"""``swell tune``: a script measured at other batches, with its base batch as the measure of all."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.cli import main
from swell.cli.batch_table import batch_table, layouts_to_try, with_base_between
from swell.cli.branch_table import show_branches
from swell.core.goodput import candidates
from tests.cli.measured_script import SCRIPT


def tune(tmp_path: Path, *options: str, epochs: int) -> int:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    line = ["tune", "--base", "16", "--max", "64", "--micro", "64", *options]
    return main([*line, str(script), str(epochs), str(tmp_path / "run")])


def test_however_little_time_there_is_every_layout_is_measured_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(tmp_path, "--seconds", "0", "--json", epochs=1000) == 0
    rows = json.loads(capsys.readouterr().out)
    layouts = candidates(replicas=1, base=16, max_batch=64, micro=(1, 64))
    trial = layouts_to_try(list(zip(layouts.global_batch.tolist(), layouts.micro_batch.tolist(), strict=True)))
    assert {(row["batch"], row["micro"]) for row in rows if row["measured"]} == set(trial)
    others = [row for row in rows if row["batch"] != 16]  # the base batch has more turns, between those of the others
    assert others and not any(row["sure"] for row in others), "one round is not enough to be sure"
    assert set(rows[0]) == {
        *("batch", "micro", "accumulation", "samples_s", "measured", "error", "sure"),
        *("efficiency", "efficiency_interval", "goodput"),
    }


def test_a_script_that_is_soon_through_is_measured_as_far_as_it_goes_and_its_base_batch_takes_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(tmp_path, epochs=20) == 0
    text = capsys.readouterr().out
    assert re.search(r"^ *16( \*)? .* 1\.00$", text, re.MULTILINE), text
    assert text.count("*") == 2, text  # one row, and its explanation


OF_ITS_OWN = """
import sys
import torch
import swell

x = torch.randn(512, 6)
model = torch.nn.Linear(6, 1)
job = swell.Job(batch=swell.Goodput(16, max=int(sys.argv[1])), save=None)
job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.02))
loader = job.loader(torch.utils.data.TensorDataset(x, x.sum(1)), shuffle=True)
for epoch in job.epochs(1000):
    for features, target in loader:
        with job.attempt():
            if len(target) > int(sys.argv[2]):
                raise torch.OutOfMemoryError("CUDA out of memory")
            job.backward(torch.nn.functional.mse_loss(model(features).squeeze(-1), target))
            job.step()
"""


@pytest.mark.parametrize(("largest", "expected"), [(64, 64), (4096, 512)], ids=["its own", "an epoch"])
def test_bounds_that_are_not_given_are_the_scripts_and_no_batch_is_larger_than_an_epoch(
    largest: int, expected: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(OF_ITS_OWN)
    assert main(["tune", "--seconds", "0", str(script), str(largest), "4096"]) == 0
    assert f"Batches from 16 to {expected} samples." in capsys.readouterr().out


def test_what_ran_out_of_memory_is_not_recommended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(OF_ITS_OWN)
    assert main(["tune", "--seconds", "0", "--micro", "128", "--json", str(script), "128", "50"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert max(row["batch"] for row in rows) == 128
    assert max(row["micro"] for row in rows) <= 50


def test_a_batch_that_takes_longer_than_a_larger_one_is_not_shown() -> None:
    result = table({(16, 1): (1.0, 0.01), (32, 1): (1.1, 0.01), (48, 1): (5.0, 0.01), (64, 1): (1.5, 0.01)})
    assert 48 in {row.batch for row in result.rows} and 48 not in {row.batch for row in result.fastest}


def table(step_s: Mapping[tuple[int, int], tuple[float, float | None]], **noise: Any) -> Any:
    """Of times and errors by micro-batch and accumulation."""
    layouts = candidates(replicas=1, base=16, max_batch=64, micro=(1, 64))
    places = [dict(zip(("micro_batch", "accumulation"), shape, strict=True)) for shape in step_s]
    profile = [
        {"replicas": 1, "nodes": 1, "step_s": seconds, "count": 30, "sync_s": 0.0, "error": error, **place}
        | {"batch": place["micro_batch"] * place["accumulation"]}
        for place, (seconds, error) in zip(places, step_s.values(), strict=True)
    ]
    return batch_table(layouts, {"profile": profile, "noise": noise or None}, replicas=1, base=16)


def test_the_base_batch_is_shown_by_the_best_of_its_layouts_that_were_measured() -> None:
    result = table({(16, 1): (0.02, 0.01), (8, 2): (0.01, 0.01), (64, 1): (0.03, 0.01)}, noise=64, signal=1, sure=True)
    assert (result.reference.micro, result.reference.accumulation, result.reference.measured) == (8, 2, True)
    assert result.reference is next(row for row in result.fastest if row.batch == 16)
    assert result.reference.sure and result.best.worth >= result.reference.worth


def test_a_figure_is_sure_where_it_was_measured_with_a_small_error() -> None:
    result = table({(16, 1): (0.01, 0.02), (32, 1): (0.015, 0.03), (64, 1): (0.02, None)})
    sure = {(row.batch, row.micro): row.sure for row in result.rows}
    assert [shape for shape, known in sure.items() if known] == [(16, 16)]
    assert all(row.error is not None for row in result.rows if not row.measured)


def test_a_row_is_recommended_for_what_it_is_worth_less_its_error() -> None:
    result = table({(16, 1): (0.01, 0.01), (32, 1): (0.015, 0.01), (64, 1): (0.02, 0.7)})
    assert (result.best.batch, result.best.micro) != (64, 64)
    assert max(result.fastest, key=lambda row: row.worth).batch == 64


def test_no_prediction_contradicts_what_was_measured() -> None:
    """Less work takes no longer than more did, and more no shorter than less, however badly the law fits."""
    times = {(16, 1): (0.010, 0.01), (24, 1): (0.040, 0.01), (64, 1): (0.041, 0.01), (8, 8): (0.300, 0.01)}
    for row in table(times).rows:
        seconds = row.batch / row.samples_s
        for (micro, accumulation), (other, _) in times.items():
            if micro >= row.micro and accumulation >= row.accumulation:
                assert seconds <= other * (1 + 1e-9)
            if micro <= row.micro and accumulation <= row.accumulation:
                assert seconds >= other * (1 - 1e-9)


@pytest.mark.parametrize(("workers", "micro"), [(1, (1, 256)), (1, (1, 16)), (2, (4, 64)), (3, (1, 256))])
def test_the_base_batch_is_always_among_what_is_measured(workers: int, micro: tuple[int, int]) -> None:
    columns = candidates(replicas=workers, base=16, max_batch=256, micro=micro)
    layouts = list(zip(columns.global_batch.tolist(), columns.micro_batch.tolist(), strict=True))
    trial = list(layouts_to_try(layouts))
    assert len(trial) <= 12 and set(trial) <= set(layouts)
    assert trial[0][0] == layouts[0][0] and trial[-1][0] == layouts[-1][0]
    assert trial[0][1] == max(micro for batch, micro in layouts if batch == layouts[0][0])


def test_nothing_is_recommended_that_is_not_surely_better_than_the_base() -> None:
    """A base batch that was measured too seldom once let a layout win that took 3.2 times its time."""
    noise = {"noise": 1e6, "signal": 1.0, "interval": [5e5, 2e6], "sure": True}
    slower = {(16, 1): (0.010, None), (32, 1): (0.064, 0.01), (64, 1): (0.128, 0.01)}
    assert table(slower, **noise).best.batch == 16
    near = {(16, 1): (0.010, 0.04), (32, 1): (0.018, 0.04), (64, 1): (0.040, 0.01)}
    assert table(near, **noise).best.batch == 16, "the intervals of the two times meet"
    faster = {(16, 1): (0.010, 0.02), (32, 1): (0.012, 0.02), (64, 1): (0.040, 0.01)}
    assert table(faster, **noise).best.batch == 32
    doubtful = {"noise": 1e6, "signal": 1.0, "interval": [0.0, 2e6], "sure": False}
    assert table(faster, **doubtful).best.batch == 16, "without noise a batch of 32 does what 16 does, in more time"


@given(
    st.lists(st.tuples(st.floats(0.001, 1.0), st.one_of(st.none(), st.floats(0.0, 1.0))), min_size=3, max_size=3),
    st.floats(0.0, 1e4),
    st.floats(0.0, 1.0),
)
def test_what_is_recommended_is_the_base_or_faster_by_more_than_both_errors(
    measured: list[tuple[float, float | None]], scale: float, below: float
) -> None:
    noise = {"noise": scale, "signal": 1.0, "interval": [scale * below, scale * 2], "sure": True}
    result = table(dict(zip([(16, 1), (32, 1), (64, 1)], measured, strict=True)), **noise)
    best, base = result.best, result.reference
    if best is not base:
        assert best.measured and base.measured and best.error is not None and base.error is not None
        assert best.worth / (1 + 2 * best.error) > base.worth
        assert best.interval[0] > base.interval[1]


@pytest.mark.parametrize(("workers", "micro"), [(1, (1, 256)), (2, (4, 64)), (3, (1, 256))])
def test_the_base_batch_gets_more_turns_than_any_other(workers: int, micro: tuple[int, int]) -> None:
    columns = candidates(replicas=workers, base=16, max_batch=256, micro=micro)
    trial = layouts_to_try(list(zip(columns.global_batch.tolist(), columns.micro_batch.tolist(), strict=True)))
    turns = with_base_between(trial, base=trial[0][0])
    assert set(turns) == set(trial)
    assert [turns.count(layout) for layout in trial if layout != turns[0]] == [1] * (len(trial) - 1)
    assert turns.count(turns[0]) >= 5 and all(a != b for a, b in itertools.pairwise(turns))


def test_time_and_samples_to_the_target_have_bounds_by_the_noise_and_the_times() -> None:
    times = {(16, 1): (0.01, 0.01), (32, 1): (0.011, 0.01), (64, 1): (0.012, 0.01)}
    result = table(times, noise=64, signal=1, sure=True, interval=[32.0, 128.0])
    for row in result.fastest:
        samples, time = row.samples_to_target, row.time_to_target(result.reference)
        assert samples.low <= samples.value <= samples.high and time.low <= time.value <= time.high
        assert (samples.low == samples.high) == (row.batch == 16) == (time.low == time.high)
    largest = result.fastest[-1]
    assert largest.samples_to_target == pytest.approx([128 / 80, 192 / 144, 96 / 48])
    assert largest.time_to_target(result.reference).value == pytest.approx(0.012 / 0.01 * 16 / 64 * 128 / 80)


def test_branches_say_what_larger_steps_are_worth_and_keep_the_run_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT)
    line = ["tune", "--branch", "--steps", "16", "--seconds", "0", "--max", "64", "--after", "3"]
    assert main([*line, "--json", str(script), "2", str(run)]) == 0
    table = json.loads(capsys.readouterr().out)
    assert not run.exists()
    assert (table["base"], table["at_step"], [row["batch"] for row in table["rows"]]) == (16, 3, [32, 64])
    assert all(row["draws"] == 3 and row["error"] is not None for row in table["rows"])
    assert table["critical_batch"]["interval"][0] <= (table["critical_batch"]["batch"] or float("inf"))
    show_branches(table)
    text = capsys.readouterr().out
    assert "Critical batch size" in text and "By the gradient noise" in text
