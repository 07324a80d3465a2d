"""A real headless Chromium, driven over a pipe by its own protocol: no driver, no download, no port."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed; run scripts/browser.sh (on Debian) to test pages in it"
)


class Browser:
    """One page of a browser of its own, with all its requests and errors."""

    def __init__(self, folder: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        assert CHROMIUM is not None
        near_in, far_in = os.pipe()
        far_out, near_out = os.pipe()
        flags = (
            "--headless --no-sandbox --disable-gpu --no-first-run --remote-debugging-pipe "
            "--disable-background-networking "
            f"--user-data-dir={folder / 'profile'} --window-size={width},{height} --hide-scrollbars"
        )
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {CHROMIUM} {flags} 3<&{near_in} 4>&{near_out}"],
            pass_fds=(near_in, near_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(folder)},
        )
        os.close(near_in)
        os.close(near_out)
        self._write, self._read, self._rest, self._number = far_in, far_out, b"", 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self.call("Browser.close", session=False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, *, session: bool = True, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number, message = self._number, {"id": self._number, "method": method, "params": parameters}
        if self._session is not None and session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for reply in self._messages(deadline):
                if reply.get("id") == number:
                    assert "error" not in reply, reply["error"]
                    return reply.get("result", {})
        raise AssertionError(f"Chromium does not answer {method}")

    def _messages(self, deadline: float) -> list[dict[str, Any]]:
        ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(self._read, 2**20) if ready else b""
        assert piece or not ready, "Chromium has ended"
        *parts, self._rest = (self._rest + piece).split(b"\0")
        messages = [json.loads(part) for part in parts]
        for message in messages:
            self._hear(message.get("method"), message.get("params", {}))
        return messages

    def _hear(self, method: str | None, parameters: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a script in the page; a promise is waited for."""
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def until(self, script: str, *, seconds: float = 30.0) -> Any:
        """Wait until a script gives something true."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if value := self.run(script):
                return value
            time.sleep(0.05)
        raise AssertionError(f"{script} was not true within {seconds:g} s; errors: {self.errors}")

    def picture(self, path: Path, *, height: int | None = None) -> Path:
        clip = {}
        if height is not None:
            clip = {"captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", format="png", **clip)["data"]
        path.write_bytes(base64.b64decode(data))
        return path
