"""After a step was given up the rest of the loop's body is harmless, until the next batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import swell
from tests.job.scenario import Points, make_model, mean_loss

GAN = """
import sys
import torch
import torch.nn.functional as F
from torch import nn

import swell

torch.manual_seed(0)
samples = torch.randn(240, 8)
generator = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
critic = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
with swell.Job(sys.argv[1], batch=16, micro=4) as job:
    generator, makers = job.wrap(generator, torch.optim.Adam(generator.parameters(), lr=1e-3))
    critic, judges = job.wrap(critic, torch.optim.Adam(critic.parameters(), lr=1e-3))
    loader = job.loader(torch.utils.data.TensorDataset(samples), shuffle=True)
    for epoch in job.epochs(2):
        for (x,) in loader:
            fake = generator(torch.randn(len(x), 4))
            loss = F.softplus(-critic(x)).mean() + F.softplus(critic(fake.detach())).mean()
            job.backward(loss, optimizer=judges)
            job.step(optimizer=judges)
            job.metrics.sum("samples", len(x))
            job.backward(F.softplus(-critic(fake)).mean(), optimizer=makers)
            job.step(optimizer=makers)
    print("counted", job.metrics.results(), flush=True)
"""


def two_optimizers(**settings: Any) -> tuple[swell.Job, Any, Any, Any]:
    job = swell.Job(**{"batch": 8, "micro": 4, **settings})
    models = [nn.Sequential(nn.BatchNorm1d(6).double(), make_model(seed=seed)) for seed in (1, 2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        job.wrap(model, optimizer, scaler=settings.pop("scaler", None))
    return job, models, optimizers, job.loader(Points(32))


def train(
    job: swell.Job, models: Any, optimizers: Any, loader: Any, *, breaks_at: int | None = None
) -> list[list[bool]]:
    """Each optimizer has its own loss; at one body the first step breaks, as by memory that ran out elsewhere."""
    answers = []
    for _ in job.epochs(1):
        for number, (x, y, _) in enumerate(loader):
            moved = []
            for place, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                job.backward(mean_loss(model, x, y), optimizer=optimizer)
                if number == breaks_at and place == 0:
                    job.engine.committer.give_up(job.engine.steps.current, "a test")  # type: ignore[arg-type]
                moved.append(job.step(optimizer=optimizer))
                job.metrics.sum("samples", len(y))
                job.metrics.mean("mean", 1.0)
            answers.append([*moved, job.every(steps=1)])
    return answers


@pytest.mark.parametrize("breaks_at", [0, 1, 4])
def test_the_rest_of_the_body_of_a_broken_step_does_nothing_and_says_no(breaks_at: int) -> None:
    whole, broken = two_optimizers(), two_optimizers()
    for one in (whole, broken):
        for model in one[1]:
            model.load_state_dict(whole[1][one[1].index(model)].state_dict())
    expected = train(*whole)
    answers = train(*broken, breaks_at=breaks_at)
    assert answers[breaks_at] == [False, False, False]
    assert answers.count([True, True, True]) == expected.count([True, True, True]) == 4
    assert broken[0].metrics.results() == whole[0].metrics.results() == {"mean": 1.0, "samples": 64.0}
    assert broken[0].samples == whole[0].samples == 32
    for mine, other in zip(broken[1], whole[1], strict=True):  # weights, and statistics of batch norm
        for name, value in mine.state_dict().items():
            torch.testing.assert_close(value, other.state_dict()[name], rtol=0, atol=0)


def test_attempts_and_redo_in_the_rest_of_the_body_do_nothing_either() -> None:
    job, model = swell.Job(batch=8), make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
    broken = 0
    for x, y, _ in job.loader(Points(16)):
        if not broken:
            broken = 1
            job.backward(mean_loss(model, x, y))
            job.engine.committer.give_up(job.engine.steps.current, "a test")  # type: ignore[arg-type]
            with job.attempt():
                job.backward(mean_loss(model, x, y))
                assert not job.step(clip=1.0)
            job.redo()
            continue
        job.backward(mean_loss(model, x, y))
        assert job.step()
    assert (job.steps, job.samples) == (2, 16)


def test_metrics_after_a_loop_that_was_left_in_a_broken_step_count_again() -> None:
    job, model = swell.Job(batch=8), make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
    for x, y, _ in job.loader(Points(16)):
        job.backward(mean_loss(model, x, y))
        job.engine.committer.give_up(job.engine.steps.current, "a test")  # type: ignore[arg-type]
        job.metrics.sum("lost", 1)
        break
    with torch.no_grad():
        for _ in job.evaluation(Points(4)):
            job.metrics.sum("seen", 1)
    assert job.metrics.results() == {"seen": 1.0}


def test_evaluating_in_the_rest_of_the_body_counts_its_own_metrics() -> None:
    job, model = swell.Job(batch=8), make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
    broken = 0
    for x, y, _ in job.loader(Points(16)):
        job.backward(mean_loss(model, x, y))
        if not broken:
            broken = 1
            job.engine.committer.give_up(job.engine.steps.current, "a test")  # type: ignore[arg-type]
            for _, labels, _ in job.evaluation(Points(10), batch_size=4):
                job.metrics.mean("mean", float(len(labels)))
        job.step()
        job.metrics.sum("steps", 1)
    assert job.metrics.results() == {"mean": pytest.approx((4 * 4 + 4 * 4 + 2 * 2) / 10), "steps": 2.0}


def chaos(tmp_path: Path, script: str, *faults: str, workers: str = "2") -> tuple[int, dict[str, Any], str]:
    (tmp_path / "gan.py").write_text(script)
    flags = [flag for fault in faults for flag in ("--fail-at", fault)]
    run = tmp_path / "run"
    command = [sys.executable, "-m", "swell", "chaos", *flags, "--json", "--workers", workers]
    done = subprocess.run(
        [*command, "--run-dir", str(run), str(tmp_path / "gan.py"), str(run)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    start = done.stdout.index("{\n")
    logs = "".join(path.read_text() for path in sorted((run / "logs").rglob("*")) if path.is_file())
    return done.returncode, json.loads(done.stdout[start:]), logs + done.stderr


@pytest.mark.distributed
@pytest.mark.slow
def test_a_gan_goes_on_when_a_peer_is_lost_in_the_step_of_its_first_optimizer(tmp_path: Path) -> None:
    status, report, logs = chaos(tmp_path, GAN, "1:5:reduce")
    assert (status, report["lost"], report["repeated"]) == (0, 0, 0), logs
    assert (report["rewound"], report["from_beginning"], report["steps"]) == (0, 0, 30), logs
    assert "{'samples': 480.0}" in logs


@pytest.mark.distributed
@pytest.mark.slow
def test_chaos_fails_where_the_script_itself_ended_the_run_and_it_began_again(tmp_path: Path) -> None:
    breaks = f"""            mark = pathlib.Path({str(tmp_path)!r}, f"failed {{job.rank}}")
            if job.steps == 6 and not mark.exists():
                mark.touch()
                raise RuntimeError("the script broke")
            fake = """
    script = GAN.replace("            fake = ", breaks).replace("import sys\n", "import pathlib\nimport sys\n")
    status, report, _ = chaos(tmp_path, script, "1:3:reduce")
    assert (status, report["from_beginning"] > 0, report["status"]) == (1, True, 0)
