"""``swell explain``: the log of a run, in sentences."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from swell.cli import main
from swell.core.events import BatchChanged, Event, Resized, RunStarted, Stepped, StepSkipped, Warned, to_json
from swell.core.types import Observation, StepSummary
from swell.policies import Goodput, observation_to_dict
from tests.policies.observations import estimate, seen

POLICY = Goodput(64, max=4096)
OBSERVED = seen(
    step=100,
    samples=6400,
    noise=estimate(5000),
    micro_batch=16,
    profile=tuple(
        StepSummary(replicas=4, nodes=1, micro_batch=micro, accumulation=accumulation, step_s=step_s, count=32)
        for micro, accumulation, step_s in [(8, 2, 0.02), (16, 1, 0.011), (32, 1, 0.0115)]
    ),
)


def changed(policy: str = repr(POLICY), after: int | None = None, observation: Observation = OBSERVED) -> BatchChanged:
    after = POLICY.batch(OBSERVED) if after is None else after
    facts = observation_to_dict(observation)
    return BatchChanged(time=1.0, step=100, before=64, after=after, policy=policy, seen=facts)


def written(folder: Path, *events: Event) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").write_text("".join(to_json(event) + "\n" for event in events))
    return str(folder)


def test_a_change_is_told_with_what_spoke_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grown = Resized(time=0.5, step=90, before=2, after=4, reason="two workers joined", pause_s=0.31)
    assert main(["explain", written(tmp_path / "run", Warned(time=0.0, message="m"), grown, changed())]) == 0
    shown = capsys.readouterr().out
    assert "Step 90: the world went from 2 to 4 replicas (two workers joined); training paused for 310 ms." in shown
    assert f"Step 100: the global batch grew from 64 to {POLICY.batch(OBSERVED)}." in shown
    assert "6,400 samples were done, 6.4% of the run, on 4 replicas." in shown
    assert "The noise scale is 5,000 samples" in shown and "times the goodput of" in shown


def test_what_part_of_the_run_was_done_is_told_by_progress_where_that_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    observation = dataclasses.replace(OBSERVED, samples=111_200, progress=450.0, total_progress=1000.0)
    assert main(["explain", written(tmp_path / "run", changed(observation=observation))]) == 0
    assert "111,200 samples were done, 45.0% of the run" in capsys.readouterr().out


def test_a_step_done_again_for_memory_is_told_with_the_new_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "memory ran out at a micro-batch of 64 samples on rank 1"
    again = StepSkipped(time=0.0, step=7, reason=reason, samples=128, redone=True, max_micro=32)
    overflow = StepSkipped(time=0.0, step=8, reason="the gradient scaler found an overflow", samples=128, redone=True)
    assert main(["explain", written(tmp_path / "run", again, overflow)]) == 0
    expected = f"Step 7: {reason}; the step is repeated in micro-batches of at most 32 samples.\n"
    assert capsys.readouterr().out == expected


def test_the_log_itself_may_be_named_and_the_last_changes_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "run", changed(), changed(), changed(after=32))
    assert main(["explain", f"{folder}/events.jsonl", "--last", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("Step 100") == 1 and "shrank from 64 to 32" in shown
    assert "another version of swell" in shown


def test_a_policy_of_the_users_own_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", written(tmp_path / "run", changed(policy="MyPolicy(7)"))]) == 0
    assert "MyPolicy(7) chose it." in capsys.readouterr().out


def test_a_clamped_choice_says_who_had_the_last_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"Clamp(policy={POLICY!r}, low=1, high=80)"
    assert main(["explain", written(tmp_path / "run", changed(policy=text, after=80))]) == 0
    assert "Clamp made 80 of" in capsys.readouterr().out


def test_tools_get_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", written(tmp_path / "run", changed()), "--json"]) == 0
    (account,) = json.loads(capsys.readouterr().out)
    assert (account["step"], account["before"], account["after"]) == (100, 64, POLICY.batch(OBSERVED))
    assert account["reasons"]


def test_a_run_whose_batch_stood_still_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = Stepped(
        time=0.0, step=1, epoch=0, samples=64, global_batch=64, replicas=1, micro_batch=64, accumulation=1,
        lr=(0.1,), lr_factor=(1.0,), gain=1.0, progress=1.0, step_s=0.1,
    )  # fmt: skip
    assert main(["explain", written(tmp_path / "run", step)]) == 0
    assert "never changed" in capsys.readouterr().out


def test_a_policy_that_follows_the_noise_is_told_with_what_was_known_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grown = changed(policy="NoiseScale(base=64, max=4096)", after=1280, observation=seen(noise=estimate(1280)))
    assert main(["explain", written(tmp_path / "run", grown)]) == 0
    text = capsys.readouterr().out
    assert "The noise scale was 1,280 samples (853 to 1,920)." in text
    assert "another version" not in text


def test_a_file_that_is_no_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("import swell\n")
    assert main(["explain", str(tmp_path / "train.py")]) == 2
    assert "has no events" in capsys.readouterr().err


@pytest.mark.parametrize("extra", [["nowhere"], ["."], [".", "--last", "0"]])
def test_what_cannot_be_told_is_refused_in_one_line(
    extra: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["explain", *extra]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_last_line_is_the_price_beside_the_base_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = {"version": "1", "replicas": 1, "base_batch": 16, "policy": "p", "rule": "r", "seed": 0, "samples": 0}
    events: list[Event] = [RunStarted(time=0.0, **start, settings={"worth_power": 0.5})]
    samples, progress = 0, 0.0
    for step in range(1, 31):
        batch, gain = (16, 1.0) if step <= 20 else (64, 3.0)
        samples, progress = samples + batch, progress + gain
        figures = {"micro_batch": batch, "accumulation": 1, "lr": (0.1,), "lr_factor": (gain,), "step_s": 0.5}
        figures |= {"noise_scale": 48.0, "noise_low": 24.0, "noise_high": 96.0}
        place = {"step": step, "epoch": 0, "samples": samples, "progress": progress, "gain": gain}
        events.append(Stepped(time=step, **place, global_batch=batch, replicas=1, **figures))
    assert main(["explain", written(tmp_path / "run", *events)]) == 0
    last = capsys.readouterr().out.replace("\n", " ")
    assert "In all: 30 steps, 960 samples, 15 s; worth 50 (" in last
    assert "1.20 (" in last and "0.60 (" in last  # 960 samples over 50 * 16; 30 steps over 50 of the same time
    assert main(["explain", written(tmp_path / "plain", *events[:21])]) == 0
    assert "In all" not in capsys.readouterr().out
