"""The live page: a small web server on this machine, for its owner alone."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from swell.errors import ConfigError, SwellError
from swell.supervisor.control import ask
from swell.telemetry.page import page
from swell.telemetry.run_hub import RunHub
from swell.version import __version__

_TICK_S = 0.25
_HEARTBEAT_S = 5.0
_MOST_STREAMS = 32
_MOST_BODY = 4096
_HOSTS = ("127.0.0.1", "localhost")


class Dashboard(ThreadingHTTPServer):
    """Serves the runs below a folder on 127.0.0.1, to whoever has the token.

    Requests of other origins, other hosts' names (DNS rebinding) and, on Linux, other users are refused. Nothing is
    changed by GET; POST needs the token in a header, which other sites cannot set.
    """

    daemon_threads = True

    def __init__(self, folder: str | os.PathLike[str], *, port: int = 0) -> None:
        self.hub = RunHub(Path(folder))
        self.token = secrets.token_urlsafe(24)
        self.streams = threading.BoundedSemaphore(_MOST_STREAMS)
        self.stopping = threading.Event()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"--port is {port}; expected a free port ({error.strerror or error}). Give another one, or 0 for any."
            ) from error

    @property
    def url(self) -> str:
        """The link to open."""
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    def server_close(self) -> None:
        """Stop listening and end the streams."""
        self.stopping.set()
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A viewer that went away is no error; anything else is shown."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Dashboard  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "swell", ""
    timeout = 30.0

    def do_GET(self) -> None:
        """The page, a stream of what is new, or a worker's output."""
        self._answer({"/": self._page, "/api/stream": self._stream, "/api/logs": self._logs})

    def do_POST(self) -> None:
        """A change of workers, or a stop."""
        self._answer({"/api/resize": self._resize, "/api/stop": self._stop})

    def _answer(self, routes: dict[str, Any]) -> None:
        target = urlsplit(self.path)
        self._query = parse_qs(target.query)
        try:
            self._check(target.path)
            if target.path not in routes:
                raise _Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
            routes[target.path]()
        except _Refused as refusal:
            self._send_json({"error": str(refusal)}, refusal.status)
        except SwellError as error:
            self._send_json({"error": str(error)}, HTTPStatus.CONFLICT)

    def _check(self, path: str) -> None:
        """Refuse everybody but the owner's own browser."""
        port = self.server.server_port
        if self.headers.get("Host") not in {f"{host}:{port}" for host in _HOSTS}:
            raise _Refused(HTTPStatus.FORBIDDEN, "this host name is not served")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}:{port}" for host in _HOSTS}:
            raise _Refused(HTTPStatus.FORBIDDEN, "requests of other origins are refused")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and path != "/":
            raise _Refused(HTTPStatus.FORBIDDEN, "requests of other sites are refused")
        given = self._query.get("token", [""])[0] if path == "/" else self.headers.get("X-Swell-Token", "")
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            raise _Refused(HTTPStatus.FORBIDDEN, "the token is missing or wrong: open the link that swell printed")
        user = peer_user(self.client_address[1], port)
        if user is not None and user not in (os.getuid(), 0):
            raise _Refused(HTTPStatus.FORBIDDEN, "this dashboard belongs to another user")

    def _page(self) -> None:
        nonce = secrets.token_urlsafe(16)
        folder = self.server.hub.folder
        title = f"swell: {folder.resolve().name}"
        footer = f"swell {__version__}, {folder}. Charts by uPlot 1.6.32, © 2022 Leon Sorokin, MIT licence."
        body = page(title=title, runs=[], footer=footer, live=True, nonce=nonce).encode()
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            f"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self._send(body, "text/html; charset=utf-8", policy=policy)

    def _logs(self) -> None:
        name, hub = self._query.get("run", [""])[0], self.server.hub
        if "log" not in self._query:
            self._send_json({"logs": hub.logs(name)})
            return
        text = hub.log(name, self._query["log"][0])
        if text is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such log")
        self._send_json({"text": text})

    def _resize(self) -> None:
        path, body = self._order()
        workers = body.get("workers")
        if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
            raise ConfigError(f"workers is {workers!r}; expected a whole number, 1 or more.")
        ask(path, "resize", workers=workers)
        self._send_json({"message": f"{workers} wanted"})

    def _stop(self) -> None:
        path, _ = self._order()
        ask(path, "stop")
        self._send_json({"message": "it saves and stops"})

    def _order(self) -> tuple[Path, dict[str, Any]]:
        """The run that a POST is about, and its body."""
        try:
            length = int(self.headers.get("Content-Length", "0"))
            body = json.loads(self.rfile.read(length)) if 0 < length <= _MOST_BODY else None
        except ValueError:
            body = None
        if not isinstance(body, dict) or not isinstance(body.get("run"), str):
            raise _Refused(HTTPStatus.BAD_REQUEST, "expected a small JSON object that names a run")
        path = self.server.hub.path(body["run"])
        if path is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such run")
        return path, body

    def _stream(self) -> None:
        """Server-sent events: the list of runs, the chosen runs, and what is new of them, until the viewer leaves."""
        if not self.server.streams.acquire(blocking=False):
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open")
        try:
            self._head("text/event-stream; charset=utf-8", None)
            self.end_headers()
            for message in self._messages(self._query.get("run", [])[:16]):
                self.wfile.write(message)
                self.wfile.flush()
        except OSError:
            pass  # the viewer has left
        finally:
            self.server.streams.release()
            self.close_connection = True

    def _messages(self, names: list[str]) -> Iterator[bytes]:
        hub, rows, sent_at = self.server.hub, None, time.monotonic()
        have: dict[str, tuple[int, int]] = {}
        tails: dict[str, dict[str, Any]] = {}
        for name in names:
            whole = hub.whole(name)
            if whole is not None:
                have[name] = whole["num_steps"], whole["rewinds"]
                yield _event({"run": whole})
        while not self.server.stopping.is_set():
            listing = hub.listing()
            if listing != rows:
                rows, sent_at = listing, time.monotonic()
                yield _event({"list": listing})
            for name in have:
                new = hub.since(name, *have[name])
                if new is None:
                    continue
                tail = new["tail"]
                have[name] = tail["num_steps"], tail["rewinds"]
                before = tails.get(name, {})
                changed = {key: value for key, value in tail.items() if key not in before or before[key] != value}
                tails[name] = tail
                if "run" in new or new["rows"] is not None or changed:
                    sent_at = time.monotonic()
                    message = {**new, "tail": changed}
                    yield _event({key: value for key, value in message.items() if value is not None})
            if time.monotonic() - sent_at > _HEARTBEAT_S:
                sent_at = time.monotonic()
                yield b": still here\n\n"
            self.server.stopping.wait(_TICK_S)

    def _send_json(self, value: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(json.dumps(value).encode(), "application/json", status=status)

    def _send(self, body: bytes, kind: str, *, status: HTTPStatus = HTTPStatus.OK, policy: str | None = None) -> None:
        self._head(kind, policy, status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _head(self, kind: str, policy: str | None, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Security-Policy": policy or "default-src 'none'; frame-ancestors 'none'",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }.items():
            self.send_header(name, value)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the link in a log would hold the token."""


def _event(message: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(message, separators=(",", ":")).encode() + b"\n\n"


def peer_user(port: int, server_port: int, table: str = "/proc/net/tcp") -> int | None:
    """The user whose process holds the other end of a loopback connection; None where that cannot be told."""
    try:
        with open(table) as file:
            rows = [line.split() for line in file][1:]
    except OSError:
        return None
    near, far = f"0100007F:{port:04X}", f"0100007F:{server_port:04X}"
    for row in rows:
        if row[1] == near and row[2] == far:
            return int(row[7])
    return None
