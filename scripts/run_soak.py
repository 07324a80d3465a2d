"""The soak test: strike two kinds of model at once in every way there is, and report.

    run_soak.py [--strikes N] [--seconds S] [--folder DIR] [--json FILE] [--page PAGE]

It ends after N strikes (half on each model) or S seconds, whichever comes first. It fails where a sample was lost or
repeated, where the weights differ from those of the undisturbed run, where a second writer was let in, where a model
did not get its strikes in time, or where a process, a private folder or anything else in the temporary directory is
left behind. Disk and network are struck where the system allows namespaces. The report goes to the terminal, to a JSON
file and, between two marks, into a page of the documentation.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from swell.checkpoint.store import Store
from swell.supervisor.surroundings import SURROUNDINGS, namespaces_refused

SCRIPT = Path(__file__).with_name("soak.py")
MODELS = ("network", "attention")
QUICK = ("kill", "term", "stop", "stuck", "spin", "clock", "exception", "oom", "resize", "storm", "cleaner", "terminal")
SLOW = ("supervisor", "stale", "writer")  # half as often, because the whole run, or a script, starts again
MTBF_S = 4.0  # a stuck worker is noticed after 8 s: struck more often, a run would hardly train between two strikes
PRELOAD = "torch,torch.distributed,torch._dynamo,swell.job"  # otherwise most of the time goes into imports
BEGIN, END = "<!-- soak: begin -->", "<!-- soak: end -->"


def strike(folder: Path, model: str, *, strikes: int, seconds: float, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Strike one model; the report of swell chaos, with its exit status."""
    run = folder / model
    line = [sys.executable, "-m", "swell", "chaos", "--json", "--show", "first", "--run-dir", str(run)]
    line += ["--workers", "1:3", "--start", "3", "--mtbf", f"{MTBF_S:g}", "--at-once", "4", "--kinds", ",".join(kinds)]
    line += ["--stop-after", str(strikes), "--duration", str(seconds), "--seed", str(MODELS.index(model))]
    line += ["--hang-timeout", "5", "--stall-timeout", "8", "--grace", "20", "--disk", "256", "--preload", PRELOAD]
    line += ["--keep", str(folder / f"{model}-end"), str(SCRIPT), str(run), model]
    log = folder / f"{model}.log"
    with log.open("wb") as output:
        status = subprocess.run(line, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    text = log.read_text(errors="replace")
    start = text.rfind("\n{\n")
    if start < 0:
        raise SystemExit(f"swell chaos ended with status {status} and no report; see {log}:\n{text[-2000:]}")
    return {"exit": status, **json.JSONDecoder().raw_decode(text[start + 1 :])[0]}


def difference(folder: Path, model: str) -> tuple[int, float]:
    """The step of the last checkpoint, and how far its weights are from those of the undisturbed run."""
    weights, step = saved_weights(folder / f"{model}-end")
    subprocess.run([sys.executable, str(SCRIPT), str(folder / f"{model}-alone"), model, str(step)], check=True)
    expected, _ = saved_weights(folder / f"{model}-alone")
    return step, float((weights - expected).norm() / expected.norm())


def saved_weights(folder: Path) -> tuple[torch.Tensor, int]:
    """The weights of the newest checkpoint as one vector, and its step."""
    newest = Store(folder).load_newest()
    if newest is None:
        raise SystemExit(f"{folder} has no checkpoint")
    checkpoint, state = newest
    model = state["trainees"][0]["model"]
    return torch.cat([model[name].flatten().double() for name in sorted(model)]), checkpoint.step


def left_over(folder: Path, temporary: Path) -> list[str]:
    """Processes of the soak, and what is in its temporary directory."""
    found = [str(path) for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]  # torch's own
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if any(str(folder / model).encode() in entry.read_bytes() for model in MODELS):
                found.append(f"process {entry.parent.name}")
        except OSError:
            continue
    return found


def soak(folder: Path, *, strikes: int, seconds: float) -> dict[str, Any]:
    """Strike both models and compare; the facts of the report."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    temporary = Path(tempfile.mkdtemp(prefix="soak-"))
    os.environ["TMPDIR"] = str(temporary)
    refused = namespaces_refused()
    around = () if refused else tuple(SURROUNDINGS)
    kinds = (QUICK + around) * 2 + SLOW
    share, began_at = -(-strikes // len(MODELS)), time.monotonic()
    with ThreadPoolExecutor() as pool:
        limits = {"strikes": share, "seconds": seconds, "kinds": kinds}
        reports = dict(zip(MODELS, pool.map(lambda model: strike(folder, model, **limits), MODELS), strict=True))
    took_s = time.monotonic() - began_at
    left = left_over(folder, temporary)
    rows = {}
    with ThreadPoolExecutor() as pool:
        compared = list(pool.map(lambda model: difference(folder, model), MODELS))
    for (model, report), (step, error) in zip(reports.items(), compared, strict=True):
        report |= {"strikes": sum(report["faults"].values()), "compared_at": step, "weights_off_by": error}
        clean = report["exit"] in (0, 3) and error < 1e-6
        report["failed"] = not clean or report["strikes"] < share
        del report["pauses_s"], report["rewinds"]
        rows[model] = report
    shutil.rmtree(temporary, ignore_errors=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{cores} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}",
        "took_s": round(took_s),
        "strikes": sum(row["strikes"] for row in rows.values()),
        "not_struck": f"{', '.join(SURROUNDINGS)}: {refused}" if refused else "",
        "left_behind": left,
        "failed": bool(left) or any(row["failed"] for row in rows.values()),
        "models": rows,
    }


def table(facts: dict[str, Any]) -> str:
    """The report as a page shows it."""
    rows, kinds = facts["models"], sorted({*QUICK, *SLOW, *SURROUNDINGS})
    lines = [
        f"{facts['date']}, {facts['machine']}: **{facts['strikes']:,} strikes** in {facts['took_s'] / 60:.0f} minutes, "
        f"left behind: {', '.join(facts['left_behind']) or 'nothing'}.",
        "",
        f"| | {' | '.join(rows)} |",
        f"|---|{'--:|' * len(rows)}",
    ]
    counts = [("strikes", "strikes"), ("steps", "steps committed"), ("samples", "samples committed")]
    counts += [
        ("lost", "samples lost"),
        ("repeated", "samples repeated"),
        ("redone", "steps that broke and were repeated"),
    ]
    counts += [("rewound", "steps repeated from a checkpoint, after all workers were struck")]
    counts += [("unexplained", "times that the run went back although not all workers were known to be struck")]
    counts += [("left_behind", "workers left behind"), ("let_in", "second writers let in")]
    lines += [f"| {text} | {' | '.join(f'{row[name]:,}' for row in rows.values())} |" for name, text in counts]
    pauses = [f"{row['median_pause_s']:.2f} s, {row['longest_pause_s']:.1f} s" for row in rows.values()]
    lines.append(f"| pause at a change of the world: median, longest | {' | '.join(pauses)} |")
    errors = [f"{row['weights_off_by']:.1e} (step {row['compared_at']:,})" for row in rows.values()]
    lines.append(f"| weights off those of the undisturbed run, relative | {' | '.join(errors)} |")
    lines += [
        f"| `{kind}` | {' | '.join(str(row['faults'].get(kind, 0)) for row in rows.values())} |" for kind in kinds
    ]
    lines += ["", f"Not struck: {facts['not_struck']}."] if facts["not_struck"] else []
    return "\n".join(lines)


def publish(facts: dict[str, Any], page: Path) -> None:
    """Put the report between the marks of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{table(facts)}\n{END}{rest.partition(END)[2]}")


def main() -> int:
    """Run it and publish the report; the exit status."""
    parser = argparse.ArgumentParser(description="Strike two kinds of model in every way there is, and report.")
    parser.add_argument("--strikes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--folder", type=Path, default=Path("runs/soak"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    facts = soak(args.folder.resolve(), strikes=args.strikes, seconds=args.seconds)
    print(table(facts))
    print("FAILED" if facts["failed"] else "nothing was lost", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(facts, indent=2) + "\n")
    if args.page is not None:
        publish(facts, args.page)
    return int(facts["failed"])


if __name__ == "__main__":
    sys.exit(main())
