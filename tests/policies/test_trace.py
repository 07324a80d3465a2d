"""A trace gives each step its size, says what happens at its end, and refuses what it cannot be sure of."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.errors import ConfigError, TraceError
from swell.policies import Trace
from tests.policies.observations import seen
from tests.reference.policies import trace_by_steps

SIZES = st.lists(st.integers(1, 10**6), min_size=1, max_size=50)


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@given(sizes=SIZES, step=st.integers(0, 100))
def test_the_nth_entry_is_the_nth_steps_and_the_last_one_is_held(sizes, step):
    expected = sizes[step] if step < len(sizes) else sizes[-1]
    for source in (sizes, tuple(sizes), np.array(sizes), np.array(sizes, dtype=np.int32)):
        trace = Trace(source)
        assert trace.batch(seen(step=step)) == expected
        assert len(trace) == len(sizes) and trace.base == sizes[0]
        assert not trace.finished(seen(step=step))


@given(sizes=SIZES, step=st.integers(0, 100))
def test_a_trace_that_stops_says_so_from_its_end_on(sizes, step):
    trace = Trace(sizes, at_end="stop")
    assert trace.finished(seen(step=step)) == (step >= len(sizes))
    if step < len(sizes):
        assert trace.batch(seen(step=step)) == sizes[step]


@pytest.mark.parametrize("at_end", ["error", "stop"])
def test_asking_past_the_end_of_a_trace_that_is_not_held_is_an_error(at_end):
    trace = Trace([64, 128], at_end=at_end)
    assert trace.batch(seen(step=1)) == 128
    with pytest.raises(TraceError, match=r"step is 2.* 2.*at_end='hold'"):
        trace.batch(seen(step=2))


def test_one_number_holds_for_ever():
    trace = Trace(128, at_end="stop")
    assert {trace.batch(seen(step=step)) for step in (0, 1, 10**9)} == {128}
    assert not trace.finished(seen(step=10**9))


@given(sizes=SIZES, newline=st.sampled_from(["\n", "\r\n"]), bom=st.booleans())
def test_a_file_is_read_by_its_rows_and_the_step_column_is_not(tmp_path_factory, sizes, newline, bom):
    rows = ["step,batchsize", *(f"{7 * i % 5},{size}" for i, size in enumerate(sizes)), ""]
    path = written(tmp_path_factory.getbasetemp(), ("\ufeff" if bom else "") + newline.join(rows))
    assert Trace(path) == Trace(str(path))
    assert Trace(path).sizes == tuple(sizes)


def test_columns_are_found_by_name_and_empty_lines_are_passed_over(tmp_path):
    path = written(tmp_path, 'note, BatchSize ,step\n\nfirst,"64",0\n  , ,\nsecond, 128 ,1\n')
    assert Trace(path).sizes == (64, 128)
    assert Trace(path, unit="steps").steps == (0, 1)
    assert Trace(written(tmp_path, "batchsize\n64\n32")).sizes == (64, 32)


@given(gaps=st.lists(st.integers(1, 20), max_size=10), sizes=st.lists(st.integers(1, 99), min_size=11, max_size=11))
def test_by_steps_each_size_holds_until_the_next_rows_step(tmp_path_factory, gaps, sizes):
    steps = [0, *np.cumsum(gaps).tolist()]
    rows = [(int(step), size) for step, size in zip(steps, sizes, strict=False)]
    path = written(tmp_path_factory.getbasetemp(), "step,batchsize\n" + "".join(f"{a},{b}\n" for a, b in rows))
    trace = Trace(path, unit="steps", at_end="stop")
    assert len(trace) == rows[-1][0] + 1
    for step in range(len(trace)):
        assert trace.batch(seen(step=step)) == trace_by_steps(rows, step)
    assert trace.finished(seen(step=len(trace)))
    assert Trace(path, unit="steps").batch(seen(step=10**6)) == rows[-1][1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no columns are named 'batchsize'"),
        ("step,batchsize\n", "has no rows"),
        ("0,128\n1,128\n", r"line 1: no columns.*'0', '128'"),
        ("step;batchsize\n0;128\n", "line 1: no columns are named 'batchsize'"),
        ("batchsize,batchsize\n1,2\n", "line 1: 2 columns are named 'batchsize'"),
        ("step,batchsize\n0,128\n1,-32\n", "line 3: batchsize is '-32'"),
        ("step,batchsize\n0,0\n", "line 2: batchsize is '0'"),
        ("step,batchsize\n0,128\n\n1,64.0\n", "line 4: batchsize is '64.0'"),
        ("step,batchsize\n0,1e3\n", "line 2: batchsize is '1e3'"),
        ("step,batchsize\n0,1_000\n", "line 2: batchsize is '1_000'"),
        ("step,batchsize\n0,many\n", "line 2: batchsize is 'many'"),
        ("step,batchsize\n0,nan\n", "line 2: batchsize is 'nan'"),
        ("step,batchsize\n0\n", "line 2: batchsize is ''"),
        ("step,batchsize\n0,\n", "line 2: batchsize is ''"),
        ("step,batchsize\n0,٣\n", "line 2: batchsize is"),
        (f"step,batchsize\n0,{'9' * 5000}\n", "line 2: batchsize is"),
        (b"step,batchsize\n0,\xff\xfe\n", "is not text"),
        (b"\x1f\x8b\x08\x00\x00\x00", "is not text"),
        (b"step,batchsize\n0,\x00128\n", "line 2|is not text"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line_and_a_remedy(tmp_path, text, message):
    with pytest.raises(TraceError, match=message) as raised:
        Trace(written(tmp_path, text))
    assert "trace.csv" in str(raised.value) and "expected" in str(raised.value)


@given(junk=st.binary(max_size=200))
def test_no_file_whatever_is_in_it_gives_anything_but_a_trace_or_a_trace_error(tmp_path_factory, junk):
    for text in (junk, b"step,batchsize\n" + junk):
        path = written(tmp_path_factory.getbasetemp(), text)
        for unit in ("rows", "steps"):
            with contextlib.suppress(TraceError):
                assert all(size >= 1 for size in Trace(path, unit=unit).sizes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batchsize\n64\n", "no columns are named 'step'"),
        ("step,batchsize\n1,64\n", "line 2: step is 1; expected 0"),
        ("step,batchsize\n0,64\n5,64\n5,32\n", "line 4: step is 5; expected more than 5"),
        ("step,batchsize\n0,64\n5,64\n3,32\n", "line 4: step is 3; expected more than 5"),
        ("step,batchsize\n-1,64\n", "line 2: step is '-1'"),
        ("step,batchsize\nx,64\n", "line 2: step is 'x'"),
    ],
)
def test_by_steps_the_step_column_must_rise_from_zero(tmp_path, text, message):
    with pytest.raises(TraceError, match=message):
        Trace(written(tmp_path, text), unit="steps")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"nowhere\.csv' .*No such file"):
        Trace(tmp_path / "nowhere.csv")
    with pytest.raises(TraceError, match="cannot be read"):
        Trace(tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "the trace is empty"),
        (np.array([], dtype=int), "the trace is empty"),
        ([64, 0], "entry 1 is 0"),
        ([64, -5], "entry 1 is -5"),
        ([64, 32.0], r"entry 1 is 32\.0"),
        ([True], "entry 0 is True"),
        (["64"], "entry 0 is '64'"),
        ([[64]], r"entry 0 is \[64\]"),
        (np.array([1.0, 2.0]), "entry 0 is"),
        (np.array([[64]]), r"shape \(1, 1\).*ravel"),
        (0, "entry 0 is 0"),
        (-3, "entry 0 is -3"),
        (True, "the trace is True of type bool"),
        (2.5, "the trace is 2.5 of type float"),
        (None, "the trace is None"),
        ({64, 32}, "of type set"),
        (iter([64]), "list_iterator"),
        (b"64", "of type bytes"),
    ],
)
def test_a_source_that_is_no_list_of_sizes_is_refused(source, message):
    with pytest.raises(TraceError, match=message):
        Trace(source)


def test_settings_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match=r"at_end is 'loop'.*'hold', 'stop', 'error'"):
        Trace([64], at_end="loop")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"unit is 'epochs'.*'rows', 'steps'"):
        Trace([64], unit="epochs")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TraceError, match="unit is 'steps' and source is list"):
        Trace([64], unit="steps")
    with pytest.raises(ConfigError, match="base is 0"):
        Trace([64], base=0)


def test_the_trace_of_eths_variable_batch_size_reads_as_it_did_there(tmp_path):
    data = os.environ.get("SWELL_DATA")
    if not data:
        pytest.skip("SWELL_DATA is not set: it names the folder with traces/eth_easl_gcp.tar.gz")
    with tarfile.open(Path(data) / "traces" / "eth_easl_gcp.tar.gz") as archive:
        member = archive.extractfile("test/test_trace.csv")
        assert member is not None
        text = member.read()
    path = written(tmp_path, text)
    trace = Trace(path, at_end="stop")
    assert len(trace) == 810
    assert sum(trace.sizes) == 769_472
    assert set(trace.sizes) <= {2**k for k in range(5, 12)}
    lines = io.StringIO(text.decode()).read().split()
    assert list(trace.sizes) == [int(line.split(",")[1]) for line in lines[1:]]
    with pytest.raises(TraceError, match=r"line \d+: step is \d+"):  # its step column does not rise
        Trace(path, unit="steps")
