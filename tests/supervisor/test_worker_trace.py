"""Traces of worker counts are read in the forms in which they are published."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.errors import TraceError
from swell.supervisor.worker_trace import WorkerTrace, read_worker_trace


def read(tmp_path: Path, text: str) -> WorkerTrace:
    (tmp_path / "trace.csv").write_text(text)
    return read_worker_trace(tmp_path / "trace.csv")


def test_counts_with_a_heading_and_an_index_keep_only_changes(tmp_path: Path) -> None:
    trace = read(tmp_path, ",Time,GPUs\n0,1000.5,8\n1,1063.5,8\n2,1126.5,4\n3,1189.5,4\n")
    assert trace == WorkerTrace((0.0, 126.0), (8, 4))


def test_adding_and_removing_nodes_is_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, "0,add,a\n0,add,b\n60000,remove,a\n60000,add,c\n90000,remove,b\n")
    assert trace == WorkerTrace((0.0, 90.0), (2, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("time,workers\n", "is empty"),
        ("5,1\n4,2\n", "5.*4"),
        ("0,1\n1,many\n", "1,many"),
        ("0,1\n1,-2\n", "1,-2"),
        ("0,add,a\n1,explode,a\n", "1,explode,a"),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused_at_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read(tmp_path, text)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(TraceError, match=r"nowhere\.csv"):
        read_worker_trace("nowhere.csv")


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 9)), min_size=1), st.floats(0, 3000))
def test_a_count_holds_until_the_next(changes: list[tuple[int, int]], time_s: float) -> None:
    times = [float(sum(gap for gap, _ in changes[:i])) for i in range(len(changes))]
    trace = WorkerTrace(tuple(times), tuple(count for _, count in changes))
    expected = [count for start, (_, count) in zip(times, changes, strict=True) if start <= time_s][-1]
    assert trace.at(time_s) == expected
    assert trace.faster(2.0).at(time_s / 2) == expected


def test_a_trace_cannot_be_played_backwards() -> None:
    with pytest.raises(TraceError, match="-1"):
        WorkerTrace((0.0,), (1,)).faster(-1)


@pytest.mark.skipif("SWELL_DATA" not in os.environ, reason="SWELL_DATA does not name a folder with traces")
@pytest.mark.parametrize(
    ("archive", "name", "most"),
    [
        ("eth_easl_gcp", "a100_trace.csv", 56),
        ("spot_bamboo", "p3-trace.csv", 32),
        ("spot_bamboo", "g4dn-trace.csv", 64),
    ],
)
def test_real_spot_traces_are_understood(tmp_path: Path, archive: str, name: str, most: int) -> None:
    with tarfile.open(Path(os.environ["SWELL_DATA"]) / "traces" / f"{archive}.tar.gz") as files:
        member = next(file for file in files.getmembers() if file.name.endswith(name))
        content = files.extractfile(member)
        assert content is not None
        trace = read(tmp_path, content.read().decode())
    assert len(trace.times_s) > 20
    assert 0 < max(trace.workers) <= most
