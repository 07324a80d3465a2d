"""The report is one file that shows everything, in a real browser, and loads nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swell.cli import main
from swell.core.events import Warned
from swell.errors import ConfigError
from swell.telemetry.html_report import report_html, write_report
from swell.telemetry.page import licence
from swell.telemetry.thinning import kept_rows
from tests.browser import Browser, needs_chromium
from tests.telemetry.runs import a_run, an_eventful_run, write_run

PANELS = ["workers", "batch", "loss", "factor", "gain", "noise", "speed"]
DRAWN = """[...document.querySelectorAll('.chart canvas')].map((canvas) => {
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let i = 0; i < pixels.length; i += 4)
    if (pixels[i + 3] > 0) colours.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
  return colours.size;
})"""


def documents(html: str) -> list[dict]:
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert data is not None
    return json.loads(data[1])["runs"]


# The document


@given(
    values=st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=500),
    points=st.integers(20, 200),
)
def test_thinning_keeps_the_ends_the_extremes_and_the_order(values, points):
    rows = kept_rows(range(len(values)), [values], [], points=points)
    assert list(rows) == sorted(set(rows)) and rows[0] == 0 and rows[-1] == len(values) - 1
    assert len(rows) <= max(points, 2) + 2
    numbers = [value for value in values if value == value]
    if numbers:
        kept = [values[row] for row in rows if values[row] == values[row]]
        assert (min(kept), max(kept)) == (min(numbers), max(numbers))


@settings(max_examples=20)
@given(levels=st.lists(st.sampled_from([64, 128, 256]), min_size=100, max_size=150))
def test_thinning_keeps_changes_of_level_as_far_as_there_is_room(levels):
    rows = set(kept_rows(range(len(levels)), [[0.0] * len(levels)], [levels], points=99).tolist())
    changes = {row for row in range(1, len(levels)) if levels[row] != levels[row - 1]}
    assert changes <= rows or len(rows) >= 30


def test_a_run_with_names_that_look_like_html_does_no_harm(tmp_path):
    folder = write_run(tmp_path / "<script>alert(1)<", [*a_run(), Warned(time=99.0, message="</script><b>x</b>\u2028")])
    html = report_html([folder])
    assert "<b>x</b>" not in html and "<script>alert" not in html
    assert documents(html)[0]["decisions"][-1]["text"] == "Warning: </script><b>x</b>\u2028"


def test_a_report_names_settings_machine_versions_decisions_and_where_the_time_went(tmp_path):
    (run,) = documents(report_html([write_run(tmp_path / "r", an_eventful_run(400))]))
    assert dict(run["settings"])["policy"].startswith("Goodput(") and dict(run["machine"])["torch"] == "2.13.0"
    assert [part["kind"] for part in run["account"]][:3] == ["training", "statistics", "data"]
    grown = [row for row in run["decisions"] if row["kind"] == "batch"]
    assert grown and all(any("noise scale" in reason for reason in row["reasons"]) for row in grown)
    assert {"resize", "start", "end"} <= {mark["kind"] for mark in run["marks"]}
    assert any(value is not None for value in run["columns"]["predicted"])


def test_what_is_no_run_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "events.jsonl").write_text('{"lr": 1}\n')
    for name, words in {"folder": "has no events.jsonl", "nowhere": "does not exist", "other": "not a log"}.items():
        assert main(["report", str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no run was given"):
        write_report([], tmp_path / "r.html")


def test_the_licence_of_the_charts_is_in_the_package():
    assert "MIT" in licence() and "Leon Sorokin" in licence()


# The page


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


def shown(browser: Browser, path: Path) -> None:
    browser.requests.clear()
    browser.errors.clear()
    browser.open(path.as_uri())


@needs_chromium
@pytest.mark.slow
def test_a_report_draws_every_panel_and_reaches_for_nothing(browser, tmp_path):
    path = write_report([write_run(tmp_path / "r", an_eventful_run(50))], tmp_path / "r.html")
    for width, dark in [(1280, False), (390, True)]:
        browser.resize(width, 900)
        browser.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        shown(browser, path)
        assert browser.run("[...document.querySelectorAll('.chart')].map((chart) => chart.id)") == [
            f"chart-{p}" for p in PANELS
        ]
        assert all(colours > 3 for colours in browser.run(DRAWN))
        assert browser.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than the screen"
        assert browser.errors == []
        assert {url.split(":")[0] for url in browser.requests} <= {"file", "data"}


@needs_chromium
@pytest.mark.slow
def test_the_axis_can_be_samples_steps_progress_or_time(browser, tmp_path):
    runs = [write_run(tmp_path / name, an_eventful_run(60, seed=seed)) for seed, name in enumerate("ab")]
    shown(browser, write_report(runs, tmp_path / "r.html"))
    last = "Swell.state.charts[0].u.scales.x.max"
    ends = {}
    for axis in browser.run("[...document.querySelectorAll('#axis option')].map((option) => option.value)"):
        browser.run(f"(() => {{ axis.value = '{axis}'; axis.dispatchEvent(new Event('change')); }})()")
        ends[axis] = browser.run(last)
    assert list(ends) == ["samples", "step", "progress", "time"]
    assert ends["step"] == 60 and len(set(ends.values())) == 4
    assert browser.run("document.querySelectorAll('.run').length") == 2
    assert browser.run("Swell.state.charts[0].u.series.length") == 3
    browser.run("document.querySelector('#picker input').click()")
    assert browser.run("document.querySelectorAll('.run').length") == 1
    assert browser.errors == []


@needs_chromium
@pytest.mark.slow
def test_an_empty_run_and_one_of_a_newer_version_are_shown_as_such(browser, tmp_path):
    empty = write_run(tmp_path / "empty", a_run()[:1])
    shown(browser, write_report([empty], tmp_path / "e.html"))
    assert "No step was taken yet" in browser.run("document.body.textContent")
    newer = write_run(tmp_path / "newer", a_run())
    with (newer / "events.jsonl").open("a") as file:
        file.write('{"event": "log", "time": 0, "schema": 99}\n{"event": "dream", "time": 1}\n{"event": "st')
    shown(browser, write_report([newer], tmp_path / "n.html"))
    assert "newer version of swell" in browser.run("document.body.textContent")
    assert browser.errors == []


@needs_chromium
@pytest.mark.slow
def test_a_report_of_fifty_thousand_steps_is_less_than_a_megabyte_and_is_drawn_and_prints(browser, tmp_path):
    path = write_report([write_run(tmp_path / "r", an_eventful_run(50_000))], tmp_path / "r.html")
    assert path.stat().st_size < 1_000_000
    shown(browser, path)
    assert all(colours > 3 for colours in browser.run(DRAWN))
    assert len(browser.call("Page.printToPDF")["data"]) > 20_000
    assert browser.errors == []
