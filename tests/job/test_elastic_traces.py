"""Guarantee 7 under real spot traces: workers come and are killed as a market did it, and the model is the same."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from swell.supervisor.worker_trace import WorkerTrace, read_worker_trace
from tests.job.elastic_history import History, check, play, records

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.skipif("SWELL_DATA" not in os.environ, reason="SWELL_DATA does not name a folder with traces"),
]
SECONDS = 9.0  # of training, into which a trace is pressed


def spot_trace(folder: Path, archive: str, name: str) -> WorkerTrace:
    """A published trace, scaled down to four workers and to the length of the test."""
    with tarfile.open(Path(os.environ["SWELL_DATA"]) / "traces" / f"{archive}.tar.gz") as files:
        content = files.extractfile(next(file for file in files.getmembers() if file.name.endswith(name)))
        assert content is not None
        (folder / "trace.csv").write_bytes(content.read())
    trace = read_worker_trace(folder / "trace.csv")
    most = max(trace.workers)
    counts = [max(1, round(4 * count / most)) for count in trace.workers]
    kept = [i for i in range(len(counts)) if i == 0 or counts[i] != counts[i - 1]]
    faster = trace.faster(trace.times_s[-1] / SECONDS)
    return WorkerTrace(tuple(faster.times_s[i] for i in kept), tuple(counts[i] for i in kept))


@pytest.mark.parametrize(
    ("archive", "name"), [("eth_easl_gcp", "a100_trace.csv"), ("spot_bamboo", "p3-trace.csv"), ("spot_parcae", ".csv")]
)
def test_a_run_on_a_spot_market_is_the_undisturbed_one(tmp_path: Path, archive: str, name: str) -> None:
    trace = spot_trace(tmp_path, archive, name)
    play(tmp_path / "alone", History(start=1, most=1))
    play(tmp_path / "spot", History(start=trace.workers[0], most=4, trace=trace, options={"pause_s": 0.12}))
    check(tmp_path / "spot", tmp_path / "alone")
    worlds = {record["generation"] for record in records(tmp_path / "spot") if "committed" in record}
    print(f"{len(worlds)} worlds, {len(trace.times_s)} changes in the trace")
    assert len(worlds) > 3
