"""The live page: its owner sees runs grow, and resizes and stops them; everybody else is refused."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swell.cli import main
from swell.core.events import RunEnded, RunStarted
from swell.errors import ConfigError
from swell.telemetry import EventLog
from swell.telemetry.dashboard import Dashboard, peer_user
from tests.browser import Browser, needs_chromium
from tests.supervisor.supervised import SupervisedRun
from tests.telemetry.runs import a_run, an_eventful_run, stepped, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "one", an_eventful_run(60))
    write_run(tmp_path / "runs" / "deep" / "two", a_run())
    logs = tmp_path / "runs" / "one" / "logs"
    logs.mkdir()
    (logs / "worker-0.log").write_text("hello from worker 0\n")
    (tmp_path / "secret.log").write_text("secret")
    (logs / "worker-1.log").symlink_to(tmp_path / "secret.log")
    return tmp_path / "runs"


@pytest.fixture
def server(folder: Path) -> Iterator[Dashboard]:
    with Dashboard(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def request(
    server: Dashboard, method: str, path: str, *, token: str | None = "right", **headers: str
) -> tuple[int, Any, Any]:
    """Status, headers and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    given = {
        "Host": f"127.0.0.1:{server.server_port}",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    if token is not None:
        given["X-Swell-Token"] = server.token if token == "right" else token
    body = given.pop("body", None)
    try:
        connection.request(method, path, body=body, headers=given)
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read().decode()
    finally:
        connection.close()


def test_it_listens_on_this_machine_only_and_every_link_is_another(folder):
    with Dashboard(folder) as one, Dashboard(folder) as other:
        assert one.server_address[0] == "127.0.0.1"
        assert one.token != other.token and len(one.token) >= 32
        with pytest.raises(ConfigError, match="free port"):
            Dashboard(folder, port=one.server_port)


def test_the_page_needs_the_token_and_forbids_everything_it_does_not_need(server):
    status, headers, text = request(server, "GET", f"/?token={server.token}", token=None)
    assert status == 200 and "<title>swell: runs</title>" in text
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'nonce-") and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy
    assert "Access-Control-Allow-Origin" not in headers
    assert (headers["Referrer-Policy"], headers["X-Content-Type-Options"]) == ("no-referrer", "nosniff")
    assert server.token not in text
    for path in ("/", "/?token=", "/?token=wrong", f"/?token={server.token[:-1]}"):
        assert request(server, "GET", path, token=None)[0] == 403


@pytest.mark.parametrize("token", [None, "", "wrong", "ü"])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/api/stream"), ("GET", "/api/logs?run=one"), ("POST", "/api/stop")]
)
def test_a_missing_or_wrong_token_is_refused(server, token, method, path):
    headers = {} if token is None else {"X_Swell_Token": token.encode().decode("latin-1")}
    assert request(server, method, path, token=None, **headers)[0] == 403
    assert request(server, method, f"{path}{'&' if '?' in path else '?'}token={server.token}", token=None)[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
    ],
    ids=str,
)
def test_other_hosts_and_other_origins_are_refused_even_with_the_token(server, headers):
    for method, path in [("POST", "/api/stop"), ("GET", "/api/logs?run=one")]:
        assert request(server, method, path, **headers)[0] == 403


def test_another_user_is_refused_even_with_the_token(server, monkeypatch):
    assert request(server, "GET", "/api/logs?run=one")[0] == 200
    monkeypatch.setattr("swell.telemetry.dashboard.peer_user", lambda *_: os.getuid() + 1)
    assert request(server, "GET", "/api/logs?run=one")[0] == 403


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system does not tell whose a connection is")
def test_the_user_of_a_connection_is_found(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.connect()
    try:
        assert peer_user(connection.sock.getsockname()[1], server.server_port) == os.getuid()
        assert peer_user(1, server.server_port) is None
    finally:
        connection.close()


def test_nothing_is_changed_by_a_link_and_nothing_else_is_served(server):
    for path in ("/api/stop?run=one", "/api/resize", "/../secret.log", "/etc/passwd", "//evil", "/api/"):
        assert request(server, "GET", path)[0] == 404
    assert request(server, "PUT", "/api/stop")[0] == 501


@pytest.mark.parametrize("body", ["", "{", "[]", '{"run": 1}', "x" * 5000])
def test_an_order_that_is_none_is_refused(server, body):
    assert request(server, "POST", "/api/stop", body=body)[0] == 400


def test_an_order_for_a_run_that_is_not_there_or_not_active_is_refused_with_the_reason(server):
    assert request(server, "POST", "/api/stop", body=json.dumps({"run": "../one"}))[0] == 404
    status, _, text = request(server, "POST", "/api/resize", body=json.dumps({"run": "one", "workers": 2}))
    assert status == 409 and "no run is active" in text
    assert request(server, "POST", "/api/resize", body=json.dumps({"run": "one", "workers": "2"}))[0] == 409


def test_the_output_of_workers_is_shown_and_no_other_file(server):
    assert json.loads(request(server, "GET", "/api/logs?run=one")[2]) == {"logs": ["worker-0.log"]}
    assert (
        json.loads(request(server, "GET", "/api/logs?run=one&log=worker-0.log")[2])["text"] == "hello from worker 0\n"
    )
    for name in ("worker-1.log", "../events.jsonl", "..%2f..%2f..%2fsecret.log", "/etc/passwd"):
        assert request(server, "GET", f"/api/logs?run=one&log={name}")[0] == 404


def test_a_folder_that_is_none_is_refused_in_one_line(tmp_path, capsys):
    assert main(["dashboard", str(tmp_path / "nowhere")]) == 2
    assert "is not a folder" in capsys.readouterr().err


# In a browser


@needs_chromium
@pytest.mark.slow
def test_a_run_is_drawn_while_it_grows_and_compared_with_another(server, folder, tmp_path):
    log = EventLog(folder / "new" / "events.jsonl", small=True)
    start = {"version": "1", "base_batch": 64, "policy": "Fixed(64)", "rule": "auto", "seed": 0, "samples": 0}
    log.emit(RunStarted(time=time.time(), replicas=1, **start))
    with Browser(tmp_path) as browser:
        browser.open(server.url)
        browser.until("document.querySelectorAll('#runlist tbody tr').length === 3")
        assert browser.run("document.querySelector('#runlist tbody tr').dataset.run") == "new"
        for step in range(1, 30):
            log.emit(stepped(time=time.time(), step=step, samples=64 * step, loss=1 / step, progress=float(step)))
            if step > 20:
                rows = f"Swell.state.runs.get('new') && Swell.state.runs.get('new').columns.samples.length === {step}"
                browser.until(rows)
                browser.until(f"Swell.state.charts.length && Swell.state.charts[0].u.data[0].length === {step}")
        log.emit(RunEnded(time=time.time(), step=29, samples=64 * 29, reason="finished"))
        browser.until("document.querySelector('.run .state').textContent === 'finished'")
        browser.run("document.querySelector('tr[data-run=one] input').click()")
        browser.until("document.querySelectorAll('.run').length === 2")
        browser.until("Swell.state.charts[0].u.series.length === 3")
        browser.run("document.querySelector('tr[data-run=one] button').click()")
        browser.until(
            "document.querySelector('#output') && document.querySelector('#output').textContent.includes('hello')"
        )
        assert browser.errors == []
        assert {url.split("/")[2] for url in browser.requests if url.startswith("http")} == {
            f"127.0.0.1:{server.server_port}"
        }
        browser.open(f"http://127.0.0.1:{server.server_port}/?token=wrong")
        assert "token is missing or wrong" in browser.run("document.body.textContent")
    log.close()


@needs_chromium
@pytest.mark.slow
@pytest.mark.distributed
def test_buttons_resize_and_stop_a_real_run(tmp_path):
    folder = tmp_path / "run"
    line = ["--workers", "1:2", "--start", "1", "-m", "swell.demo.worker", str(folder), "--epochs", "1000"]
    folder.mkdir()
    (folder / "pace").write_text("2000")
    with SupervisedRun.of(tmp_path, *line) as run, Dashboard(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            with Browser(tmp_path) as browser:
                browser.open(server.url)
                browser.until("Swell.state.charts.length > 5", seconds=120)
                assert browser.run("document.querySelector('.run h3').textContent").startswith("run")
                browser.run("(() => { document.querySelector('.control input').value = 2; })()")
                browser.run("document.querySelector('.control .resize').click()")
                browser.until("document.querySelector('tr[data-run=run]').textContent.includes('running')")
                browser.until("Swell.state.runs.get('run').columns.workers.at(-1) === 2", seconds=120)
                browser.until("document.getElementById('decisions').textContent.includes('from 1 to 2 replicas')")
                assert browser.run("[...document.querySelectorAll('#worker option')].length") >= 1
                browser.run("document.querySelector('.control .stop').click()")
                browser.run("document.querySelector('.control .stop').click()")
                assert run.end() == 143
                browser.until("document.querySelector('.run .state').textContent === 'stopped'")
                assert browser.errors == []
        finally:
            server.shutdown()
            thread.join()
