"""Records what AdaptDL 0.2.11 answers, once; not run by the tests.

In an environment of its own, beside torch: ``pip install --no-deps adaptdl``, then ``pip install portpicker autograd
semver requests 'setuptools<80'``, then ``python tests/golden/adaptdl/record.py``. Writes ``adaptdl.json`` beside it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

np.int = int  # type: ignore[attr-defined]  # AdaptDL uses the name, numpy dropped it in 1.24
HERE = Path(__file__).parent
PERF = [(0.1, 0.01, 0.5, 0.1, 0.2, 0.05, 1.2), (0.02, 0.001, 0.1, 0.01, 0.05, 0.004, 2.5)]
GRAD = [(0.001, 0.01), (1.0, 0.5), (0.0, 1.0)]
WORLDS = [(1, 1), (1, 2), (1, 3), (2, 4), (3, 7)]
POINTS = [(128, 0), (256, 1), (300, 3)]


def goodput() -> list[dict]:
    from adaptdl.goodput import GoodputFunction, GradParams, PerfParams  # pyright: ignore[reportMissingImports]

    rows = []
    for perf in PERF:
        for grad in GRAD:
            fun = GoodputFunction(PerfParams(*perf), GradParams(*grad), 128)
            for nodes, replicas in WORLDS:
                for atomic, steps in POINTS:
                    at = (nodes, replicas, atomic, steps)
                    rows.append(
                        {
                            "perf": perf,
                            "grad": grad,
                            "at": at,
                            "goodput": float(fun(*at)),
                            "throughput": float(fun.throughput(*at)),
                            "efficiency": float(fun.efficiency(replicas * atomic * (steps + 1))),
                        }
                    )
    return rows


def optimum() -> list[dict]:
    from adaptdl.goodput import GoodputFunction, GradParams, PerfParams  # pyright: ignore[reportMissingImports]

    rows = []
    for perf in PERF:
        for grad in GRAD:
            fun = GoodputFunction(PerfParams(*perf), GradParams(*grad), 128)
            for nodes, replicas in WORLDS:
                for accumulation in (False, True):
                    best = fun.optimize(
                        nodes, replicas, max_batch_size=1280, atomic_bsz_range=(64, 256), accumulation=accumulation
                    )
                    rows.append(
                        {
                            "perf": perf,
                            "grad": grad,
                            "world": (nodes, replicas),
                            "accumulation": accumulation,
                            "best": [float(best[0]), int(best[1]), int(best[2])],
                        }
                    )
    return rows


def fitted() -> dict:
    from adaptdl.goodput import GoodputFunction, GradParams, PerfParams, fit_perf_params  # pyright: ignore[reportMissingImports]

    true = PerfParams(*PERF[1])
    fun = GoodputFunction(true, GradParams(0.0, 1.0), 16)
    rows = []
    for nodes, replicas in [(1, 1), (1, 2), (1, 4), (2, 4), (2, 8), (3, 6)]:
        for atomic in (16, 32, 64, 128):
            computing = true.alpha_c + true.beta_c * atomic
            whole = replicas * atomic / float(fun.throughput(nodes, replicas, atomic, 0))
            rows.append((nodes, replicas, atomic, computing, whole))
    found = fit_perf_params(*(np.array(column) for column in zip(*rows, strict=True)))
    return {"rows": rows, "params": [float(x) for x in found]}


def sampled() -> list[dict]:
    from adaptdl.torch.data import ElasticSampler  # pyright: ignore[reportMissingImports]

    rows = []
    for size, replicas, index in [(12, 1, 0), (12, 3, 0), (12, 2, 4), (20, 4, 8)]:
        for rank in range(replicas):
            sampler = ElasticSampler(list(range(size)), shuffle=False)
            sampler.num_replicas, sampler.rank = replicas, rank
            sampler.set_epoch(0, index)
            rows.append({"at": [size, replicas, rank, index], "samples": [int(i) for i in sampler]})
    return rows


def train() -> None:
    """One replica of a small run: no shuffling, so that any library sees the same samples in each step."""
    import adaptdl.torch  # pyright: ignore[reportMissingImports]
    import torch
    from torch.utils.data import TensorDataset

    x = torch.linspace(-1, 1, 96, dtype=torch.float64).reshape(32, 3).sin()
    y = (x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)) + 0.3 * (torch.arange(32) % 3)
    model = torch.nn.Linear(3, 1).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    adaptdl.torch.init_process_group("gloo")
    wrapped = adaptdl.torch.AdaptiveDataParallel(model, optimizer, scheduler)
    loader = adaptdl.torch.AdaptiveDataLoader(TensorDataset(x, y), batch_size=8, drop_last=True)
    for _ in adaptdl.torch.remaining_epochs_until(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            ((wrapped(inputs).squeeze(-1) - targets) ** 2).mean().backward()
            optimizer.step()
        scheduler.step()
    print(
        json.dumps(
            {
                "weights": [v for p in model.parameters() for v in p.detach().flatten().tolist()],
                "lr": optimizer.param_groups[0]["lr"],
                "sqr": float(wrapped.gns.sqr_avg()),
                "var": float(wrapped.gns.var_avg()),
                "gain": float(wrapped.gain),
                "gain_at_4": float(wrapped.gns.gain(4.0)),
                "progress": float(wrapped.gns.get_progress()),
            }
        )
    )


def runs() -> dict[str, dict]:
    found = {}
    for replicas in (1, 2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        workers = [
            subprocess.Popen(
                [sys.executable, __file__, "train"],
                stdout=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "ADAPTDL_REPLICA_RANK": str(rank),
                    "ADAPTDL_NUM_REPLICAS": str(replicas),
                    "ADAPTDL_MASTER_ADDR": "127.0.0.1",
                    "ADAPTDL_MASTER_PORT": str(port),
                    "GLOO_SOCKET_IFNAME": "lo",
                },
            )
            for rank in range(replicas)
        ]
        answers = [worker.communicate()[0] for worker in workers]
        found[str(replicas)] = json.loads(answers[0].splitlines()[-1])
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["train"]:
        train()
    else:
        parts = {"goodput": goodput(), "optimum": optimum(), "fit": fitted(), "sampler": sampled(), "runs": runs()}
        (HERE / "adaptdl.json").write_text(json.dumps({"version": "0.2.11", **parts}, indent=1) + "\n")
