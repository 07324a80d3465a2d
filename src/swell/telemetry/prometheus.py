"""A run's newest figures in Prometheus' text format, served to a cluster's monitoring."""

from __future__ import annotations

import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from swell.errors import ConfigError
from swell.telemetry.run_folder import RunFolder
from swell.telemetry.run_model import RunModel
from swell.telemetry.time_account import WORDS

KIND = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(model: RunModel, *, run: str, state: str) -> str:
    """The figures as gauges and counters, each with a line of help; what is not known is left out."""
    latest, label = model.latest, f'run="{_escaped(run)}"'
    lines: list[str] = []

    def add(name: str, kind: str, text: str, *values: tuple[str, float | None]) -> None:
        known = [(labels, value) for labels, value in values if value is not None]
        if known:
            lines.extend([f"# HELP swell_{name} {text}", f"# TYPE swell_{name} {kind}"])
            lines.extend(f"swell_{name}{{{labels}}} {_number(value)}" for labels, value in known)

    states = ("running", "finished", "stopped", "silent", "empty")
    add(
        "state",
        "gauge",
        "1 for the state that the run is in.",
        *((f'{label},state="{s}"', float(s == state)) for s in states),
    )
    add("done_ratio", "gauge", "Part of the run that is done, 0 to 1.", (label, model.done))
    add(
        "time_left_seconds",
        "gauge",
        "Expected time to the end.",
        (label, None if model.left is None else model.left.seconds),
    )
    add("last_event_timestamp_seconds", "gauge", "When the run was last heard of.", (label, model.last_time))
    if latest is not None:
        add("steps_total", "counter", "Optimizer steps committed.", (label, latest.step))
        add("samples_total", "counter", "Samples committed.", (label, latest.samples))
        add("progress_total", "counter", "Accumulated base steps.", (label, latest.progress))
        add("workers", "gauge", "Replicas that train.", (label, latest.replicas))
        add("global_batch", "gauge", "Samples of one step.", (label, latest.global_batch))
        add("micro_batch", "gauge", "Samples of one forward pass.", (label, latest.micro_batch))
        add("accumulation", "gauge", "Forward passes of one replica in a step.", (label, latest.accumulation))
        factors = enumerate(latest.lr_factor)
        add("lr_factor", "gauge", "Factor of the learning rate.", *((f'{label},group="{i}"', f) for i, f in factors))
        add("gain", "gauge", "Base steps that a step is worth.", (label, latest.gain))
        add("noise_scale", "gauge", "Gradient noise scale in samples.", (label, latest.noise_scale))
        add("loss", "gauge", "Loss of the latest step.", (label, latest.loss))
    add("samples_per_second", "gauge", "Speed of the latest steps.", (label, model.samples_per_s))
    add("goodput", "gauge", "Samples a second, each weighted by its worth at the base batch.", (label, model.goodput))
    spent = model.account.parts().items()
    add(
        "seconds_total",
        "counter",
        "Where the time went.",
        *((f'{label},spent="{kind}"', s) for kind, s in spent if kind in WORDS),
    )
    metrics = ((f'{label},metric="{_escaped(name)}"', value) for name, value in model.metrics.items())
    add("epoch_metric", "gauge", "Metrics of the last epoch.", *metrics)
    return "\n".join(lines) + "\n"


class MetricsServer:
    """Serves ``/metrics`` of one run, in a thread, from its log: the workers do nothing for it.

    ``host`` is loopback unless asked otherwise; the figures are for everybody who reaches the port.
    """

    def __init__(self, folder: Path, *, port: int, host: str = "127.0.0.1") -> None:
        run, lock, name = RunFolder(folder), threading.Lock(), folder.resolve().name

        class Handler(BaseHTTPRequestHandler):
            """Answers ``GET /metrics`` and nothing else."""

            server_version, sys_version, timeout = "swell", "", 10.0

            def do_GET(self) -> None:
                """The figures as of now."""
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404, "only /metrics is here")
                    return
                with lock:
                    run.poll()
                    body = metrics_text(run.model, run=name, state=run.state()).encode()
                self.send_response(200)
                self.send_header("Content-Type", KIND)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise ConfigError(
                f"--metrics-port is {port}; expected a free port on {host} ({error.strerror or error}). Give another."
            ) from error
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._run = run
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name="swell-metrics")

    def __enter__(self) -> MetricsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._run.reader.close()


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(float(value)) if math.isfinite(value) else "+Inf" if value > 0 else "-Inf"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
