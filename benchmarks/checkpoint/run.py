"""How long saving holds the training thread: swell's asynchronous checkpoints against torch.save of the same state.

python benchmarks/checkpoint/run.py [--repeats 7] [--folder DIR] [--device cpu] [--out results.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from swell.checkpoint import AsyncSaver, SaveReport, Store

WIDTHS = {"5 M parameters": 640, "20 M parameters": 1280, "60 M parameters": 2240}
LAYERS = 12


def state_after_a_step(width: int, device: str) -> dict[str, Any]:
    """The state of a network and its AdamW after one step: three numbers a parameter."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(LAYERS))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, width, device=device)).square().mean().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def torch_save_seconds(state: dict[str, Any], path: Path) -> float:
    """Seconds for torch.save to a file and its sync: what a loop waits for if it saves by itself."""
    start = time.perf_counter()
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


def measure(state: dict[str, Any], folder: Path, repeats: int) -> dict[str, Any]:
    reports: list[SaveReport] = []
    store = Store(folder / "run", keep=1)
    saver = AsyncSaver(store, on_saved=reports.append, on_warning=print)
    saver.prepare(state)
    torch_saves, swell_saves, arrivals = [], [], []
    for step in range(repeats + 1):  # in turn, so that both meet the same disk and the same load
        torch_saves.append(torch_save_seconds(state, folder / "plain.pt"))
        synchronize()
        start = time.perf_counter()
        saver.save_async(state, samples=step, step=step)
        synchronize()
        arrivals.append(time.perf_counter() - start)
        saver.wait()
        start = time.perf_counter()
        store.save(state, samples=step, step=step)
        swell_saves.append(time.perf_counter() - start)
    saver.close()
    first, *later = [report.held_s for report in reports]
    torch_save_s = statistics.median(torch_saves)
    return {
        "megabytes": round(reports[0].checkpoint.manifest.num_bytes / 1e6, 1),
        "torch_save_s": torch_save_s,
        "held_s": statistics.median(later),
        "held_worst_s": max(later),
        "copy_arrived_s": statistics.median(arrivals),  # on a device the copy is queued, and training does not wait
        "held_first_s": first,
        "held_over_torch_save": statistics.median(h / t for h, t in zip(later, torch_saves[1:], strict=True)),
        "held_first_over_torch_save": first / torch_save_s,
        "background_write_s": statistics.median(report.write_s for report in reports),
        "synchronous_swell_save_s": statistics.median(swell_saves),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure; default: a temporary folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    results = {}
    for name, width in WIDTHS.items():
        state = state_after_a_step(width, options.device)
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            results[name] = measure(state, Path(folder), options.repeats)
        figures = results[name]
        print(
            f"{name}: torch.save {figures['torch_save_s']:.3f} s, held {figures['held_s']:.3f} s "
            f"({figures['held_over_torch_save']:.1%}; the first save {figures['held_first_over_torch_save']:.1%})"
        )
    about = {
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "device": options.device,
    }
    load = [round(value, 1) for value in os.getloadavg()]
    record = {**about, "load": load, "repeats": options.repeats, "results": results}
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
