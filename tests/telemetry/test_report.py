"""A picture of a run, or of several side by side; it is drawn for every log with a step in it."""

from __future__ import annotations

import builtins
import math

import pytest

from swell.errors import ConfigError, DependencyError
from swell.telemetry import compare, draw_run
from tests.telemetry.runs import a_run, stepped

PNG = b"\x89PNG\r\n\x1a\n"


def words(path) -> str:
    return path.read_text()


def test_a_run_is_drawn_as_a_png(tmp_path):
    path = draw_run(a_run(resize_at=10), tmp_path / "deep" / "run.png")
    assert path == tmp_path / "deep" / "run.png"
    assert path.read_bytes().startswith(PNG) and path.stat().st_size > 10_000


def test_the_picture_says_what_it_shows(tmp_path):
    text = words(draw_run(a_run(), tmp_path / "run.svg"))
    for phrase in ("loss", "global batch, in samples", "gain and learning rate factor", "28 steps, 3,000 samples"):
        assert phrase in text
    assert "Fixed(64), rule auto, base batch 64" in text
    assert ">replicas<" not in text  # they do not change


def test_replicas_are_drawn_where_they_change(tmp_path):
    assert ">replicas<" in words(draw_run(a_run(resize_at=10), tmp_path / "run.svg"))


def test_an_lr_factor_that_is_the_gain_is_drawn_once(tmp_path):
    text = words(
        draw_run([stepped(samples=64 * i, gain=2.0, lr_factor=(2.0,)) for i in range(1, 9)], tmp_path / "r.svg")
    )
    assert "gain: base steps a step is worth" in text and "lr factor" not in text


def test_runs_are_compared_side_by_side_with_their_steps(tmp_path):
    runs = {"small batch": a_run(grow=False), "swell": a_run(), "a third": a_run(epochs=1)}
    text = words(compare(runs, tmp_path / "compare.svg"))
    for phrase in ("small batch (48 steps)", "swell (28 steps)", "a third (16 steps)", "loss", "gain"):
        assert phrase in text


ODD = {
    "one step": [stepped()],
    "no loss": [stepped(samples=64 * i, loss=None) for i in range(1, 9)],
    "a loss that is not finite": [stepped(samples=64 * i, loss=math.nan if i == 3 else math.inf) for i in range(1, 9)],
    "a loss below zero": [stepped(samples=64 * i, loss=-float(i)) for i in range(1, 9)],
    "a loss of zero": [stepped(samples=64 * i, loss=0.0) for i in range(1, 9)],
    "a loss over many magnitudes": [stepped(samples=64 * i, loss=10.0**-i) for i in range(1, 60)],
    "a gain of zero": [stepped(samples=64 * i, gain=0.0, lr_factor=()) for i in range(1, 9)],
    "a gain that is not a number": [stepped(samples=64 * i, gain=math.nan, lr_factor=(math.nan,)) for i in range(1, 9)],
    "a gain that is infinite": [stepped(samples=64 * i, gain=math.inf, lr_factor=(2.0,)) for i in range(1, 9)],
    "batches from one to a million": [stepped(samples=4**i, global_batch=2**i) for i in range(20)],
    "more steps than pixels": [stepped(step=i, samples=64 * i) for i in range(1, 9002)],
}


@pytest.mark.parametrize("name", ODD)
def test_no_log_with_a_step_is_too_odd_to_draw(name, tmp_path):
    assert draw_run(ODD[name], tmp_path / "run.png").read_bytes().startswith(PNG)


def test_odd_logs_can_be_compared_too(tmp_path):
    assert compare(ODD, tmp_path / "compare.png").read_bytes().startswith(PNG)


def test_a_log_without_a_step_is_refused_and_leaves_no_file(tmp_path):
    with pytest.raises(ConfigError, match="no committed step"):
        draw_run([], tmp_path / "run.png")
    with pytest.raises(ConfigError, match="runs"):
        compare({}, tmp_path / "run.png")
    assert not list(tmp_path.iterdir())


def test_a_user_s_own_settings_of_matplotlib_are_left_alone(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw_run(a_run(epochs=1), tmp_path / "run.png")
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib_the_error_names_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def without_matplotlib(name, *rest):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(DependencyError, match=r"pip install '\.\[report\]'"):
        draw_run(a_run(epochs=1), tmp_path / "run.png")
