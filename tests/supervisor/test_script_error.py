"""Errors of a script under a real supervisor: said once more at most, and in words where they are known."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.supervisor.script_error import last_traceback, script_error
from tests.supervisor.supervised import SupervisedRun

TRACEBACK = "Traceback (most recent call last):\n  File 'train.py', line 3\n    f()\nKeyError: 3"
WORD = st.text("abc :'", min_size=1, max_size=8).filter(lambda text: not text.startswith(" "))


@given(before=st.lists(WORD, max_size=4), after=st.lists(WORD, max_size=3), rank=st.booleans())
def test_the_last_traceback_is_found_whatever_is_printed_around_it(
    before: list[str], after: list[str], rank: bool
) -> None:
    own = "\n".join(f"[rank1]: {line}" for line in TRACEBACK.splitlines()) if rank else TRACEBACK
    text = "\n".join([*before, TRACEBACK.replace("3", "2"), *before, own, *after])
    assert last_traceback(text) == TRACEBACK
    assert last_traceback("\n".join(before)) == ""


def test_addresses_and_the_output_of_an_earlier_process_do_not_count(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(TRACEBACK + "\n")
    start = log.stat().st_size
    assert script_error(log, start) == "" == script_error(tmp_path / "none", 0)
    for address in ("0x7f01ab", "0x7f99cd"):
        with log.open("a") as file:
            file.write(TRACEBACK.replace("KeyError: 3", f"TypeError: <object at {address}>") + "\n")
        assert script_error(log, start).endswith("TypeError: <object at 0x...>")


@pytest.mark.parametrize(
    ("script", "words", "status"),
    [
        ("raise ValueError('no such column')", "ValueError: no such column", 1),
        ("x = (", "SyntaxError: '(' was never closed", 1),
        ("import argparse; argparse.ArgumentParser(prog='train').parse_args(['--lr'])", "--lr", 2),
    ],
)
def test_a_script_that_fails_before_its_first_step_is_started_twice_only(
    tmp_path: Path, script: str, words: str, status: int
) -> None:
    (tmp_path / "train.py").write_text(f"{script}\n")
    with SupervisedRun.of(tmp_path, "--workers", "1", "--max-restarts", "9", str(tmp_path / "train.py")) as run:
        assert run.end() == status
        assert run.terminal().count("started (pid") == 2
        (line,) = [line for line in run.terminal().splitlines() if "came again before a worker's first step" in line]
        assert words in line


SHARDED = """
import torch, swell
from torch.distributed.fsdp import fully_shard
job = swell.Job(batch=8, device="cpu")
fully_shard(torch.nn.Linear(4, 4))
"""


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("script", [SHARDED, "import torch.distributed as dist; dist.init_process_group('gloo')"])
def test_a_sharded_model_in_place_is_refused_with_the_engine_to_use(tmp_path: Path, script: str) -> None:
    (tmp_path / "train.py").write_text(script)
    with SupervisedRun.of(tmp_path, "--workers", "1", str(tmp_path / "train.py")) as run:
        assert run.end(timeout_s=120) == 2, run.terminal()
        assert "FSDP2" in run.terminal() and "swell run --engine torchrun" in run.terminal()
        assert run.terminal().count("started (pid") == 1
