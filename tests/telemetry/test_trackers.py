"""Runs in other people's trackers, against the real packages, offline; each test is skipped where its package is not.

``make test-trackers`` installs them into an environment of their own.
"""

from __future__ import annotations

import json
import math
import sqlite3
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from swell.core.events import Stepped
from swell.errors import ConfigError, DependencyError
from swell.telemetry import Fanout, MlflowSink, TrackerSink
from swell.telemetry.prometheus import KIND, MetricsServer, metrics_text
from swell.telemetry.run_model import model_of
from tests.telemetry.runs import a_run, an_eventful_run, stepped, write_run

pytestmark = pytest.mark.filterwarnings("default")  # what trackers warn of is not ours


def tell(sink: Any, events: Any) -> None:
    for event in events:
        sink.emit(event)
    sink.close()


def last_step(events: Any) -> Stepped:
    return [event for event in events if isinstance(event, Stepped)][-1]


def test_a_tracker_that_is_not_installed_is_named():
    with pytest.raises(DependencyError, match="no_such_tracker is not installed"):
        TrackerSink("no_such_tracker", project="p")


def test_a_tracker_gets_figures_by_samples_settings_and_reasons_and_is_closed_once(tmp_path, monkeypatch):
    (tmp_path / "fake_tracker.py").write_text(
        "class Run:\n"
        "    def __init__(self): self.rows, self.ended = [], 0\n"
        "    def log(self, values, step): self.rows.append((step, values))\n"
        "    def finish(self): self.ended += 1\n"
        "def init(**options):\n"
        "    global run, given\n"
        "    run, given = Run(), options\n"
        "    return run\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    events = list(an_eventful_run(40))
    sink = TrackerSink("fake_tracker", project="p", every_s=0.0)
    tell(sink, events)
    sink.close()
    import fake_tracker  # pyright: ignore[reportMissingImports]

    assert fake_tracker.given["project"] == "p" and fake_tracker.given["config"]["policy"].startswith("Goodput(")
    rows = fake_tracker.run.rows
    assert fake_tracker.run.ended == 1
    assert [step for step, _ in rows] == sorted(step for step, _ in rows)
    assert [values["loss"] for _, values in rows if "loss" in values] == [
        e.loss for e in events if isinstance(e, Stepped)
    ]
    assert any("samples were done" in values.get("why", "") for _, values in rows)
    assert any(values.get("epoch/accuracy") == 0.93 for _, values in rows)


def test_a_tracker_gets_at_most_one_step_a_second(tmp_path, monkeypatch):
    (tmp_path / "slow_tracker.py").write_text(
        "rows = []\nclass Run:\n    def log(self, values, step): rows.append(values)\n    def finish(self): pass\n"
        "def init(**options): return Run()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    tell(TrackerSink("slow_tracker"), (stepped(time=n / 10, step=n, samples=64 * n) for n in range(1, 101)))
    import slow_tracker  # pyright: ignore[reportMissingImports]

    assert len(slow_tracker.rows) == 10


def test_wandb_keeps_a_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed; make test-trackers installs it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    fanout = Fanout([TrackerSink("wandb", project="p", mode="offline", dir=str(tmp_path), every_s=0.0)])
    for event in an_eventful_run(30):
        fanout.emit(event)
    assert len(fanout.sinks) == 1, "it took every event"
    fanout.close()
    (record,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = record.read_bytes()
    assert b"batch/global" in content and b"Goodput" in content and b"samples were done" in content


def test_trackio_keeps_a_run_in_a_file_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("trackio", reason="trackio is not installed; make test-trackers installs it")
    fanout = Fanout([TrackerSink("trackio", project="digits", name="one", every_s=0.0)])
    events = list(an_eventful_run(30))
    for event in events:
        fanout.emit(event)
    assert len(fanout.sinks) == 1, "it took every event"
    fanout.close()
    with sqlite3.connect(next(tmp_path.rglob("*.db"))) as database:
        rows = database.execute("select step, metrics from metrics order by step").fetchall()
    database.close()
    assert rows[-1][0] == last_step(events).samples
    logged = [json.loads(text) for _, text in rows]
    assert any(row.get("batch/global") == 64 for row in logged)


def test_mlflow_keeps_a_run_in_a_store_of_this_machine(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed; make test-trackers installs it")
    from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports]

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri, events = (tmp_path / "store").as_uri(), list(an_eventful_run(30))
    fanout = Fanout([MlflowSink(uri, experiment="digits", name="one", every_s=0.0)])
    for event in events:
        fanout.emit(event)
    assert len(fanout.sinks) == 1, "it took every event"
    fanout.close()
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["base_batch"] == "64"
    assert run.data.metrics["batch/global"] == last_step(events).global_batch
    assert client.get_metric_history(run.info.run_id, "loss")[-1].step == last_step(events).samples


def test_mlflow_that_is_not_installed_is_named():
    try:
        import mlflow  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        with pytest.raises(DependencyError, match="mlflow is not installed"):
            MlflowSink()


# Prometheus


def figures(text: str) -> dict[str, float]:
    """The values by name and labels, by a reader of our own of the text format."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_are_the_newest_figures_of_the_run():
    events = list(an_eventful_run(30))
    found, latest = figures(metrics_text(model_of(events), run='a"b', state="finished")), last_step(events)
    assert found['swell_samples_total{run="a\\"b"}'] == latest.samples
    assert found['swell_workers{run="a\\"b"}'] == latest.replicas
    assert found['swell_state{run="a\\"b",state="finished"}'] == 1.0
    assert found['swell_epoch_metric{run="a\\"b",metric="accuracy"}'] == 0.93
    assert metrics_text(model_of([]), run="r", state="empty").count("swell_state{") == 5


def test_metrics_that_are_not_finite_are_written_as_prometheus_reads_them():
    text = metrics_text(model_of([stepped(loss=math.nan, noise_scale=math.inf)]), run="r", state="running")
    assert 'swell_loss{run="r"} NaN' in text and 'swell_noise_scale{run="r"} +Inf' in text


def test_the_reference_parser_reads_the_metrics():
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    text = metrics_text(model_of(an_eventful_run(30)), run='a"\n\\b', state="running")
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert families["swell_samples"].type == "counter"
    assert families["swell_gain"].samples[0].labels == {"run": 'a"\n\\b'}


def test_metrics_are_served_on_this_machine_while_the_run_grows(tmp_path: Path):
    write_run(tmp_path / "r", a_run()[:10])
    with MetricsServer(tmp_path / "r", port=0) as server:
        url = f"http://127.0.0.1:{server.port}/metrics"

        def scraped() -> dict[str, float]:
            with urllib.request.urlopen(url, timeout=10) as reply:
                assert reply.headers["Content-Type"] == KIND
                return figures(reply.read().decode())

        assert scraped()['swell_steps_total{run="r"}'] == 8
        write_run(tmp_path / "r", a_run()[10:20])
        assert scraped()['swell_steps_total{run="r"}'] > 8
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url.replace("metrics", "other"), timeout=10)
        with pytest.raises(ConfigError, match="free port"):
            MetricsServer(tmp_path / "r", port=server.port)
