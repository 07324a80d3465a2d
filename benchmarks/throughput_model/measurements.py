"""Measured step times of real models by configuration: from a published set, and from files beside this one.

``traces/pollux_osdi21.tar.gz`` is read from the folder that SWELL_DATA names; a file ``measured/NAME.json`` holds a
list of summaries of one's own machine, with the fields of ``StepSummary``, as ``Profile.summaries()`` gives them.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from swell.core.types import StepSummary

HERE = Path(__file__).parent
Cell = tuple[int, int, int]  # replicas, nodes, micro-batch


def data_folder() -> Path | None:
    """The folder of shared data sets, or None where SWELL_DATA does not name one with traces."""
    folder = os.environ.get("SWELL_DATA")
    return Path(folder) if folder and (Path(folder) / "traces").is_dir() else None


def pollux(folder: Path) -> dict[str, list[StepSummary]]:
    """Six models on up to 16 nodes of 4 GPUs; placements of one shape count as one configuration, by their median."""
    found: dict[str, dict[Cell, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    with tarfile.open(folder / "traces" / "pollux_osdi21.tar.gz") as archive:
        for name, rows in _tables(archive):
            model = name.split("/")[-2]
            for row in rows:
                if "placement" in row:  # one digit a node: the replicas on it
                    nodes = [int(digit) for digit in row["placement"]]
                    cell = (sum(nodes), len(nodes), int(row["local_bsz"]))
                else:
                    cell = (int(row["num_replicas"]), int(row["num_nodes"]), int(row["local_bsz"]))
                found[model][cell].append((float(row["step_time"]), float(row["sync_time"])))
    return {
        f"pollux/{model}": [
            _summary(cell, median(step for step, _ in times), sync_s=median(sync for _, sync in times))
            for cell, times in sorted(cells.items())
        ]
        for model, cells in sorted(found.items())
    }


def own() -> dict[str, list[StepSummary]]:
    """What was measured here: every file of the folder ``measured``."""
    return {
        f"measured/{path.stem}": [StepSummary(**record) for record in json.loads(path.read_text())]
        for path in sorted((HERE / "measured").glob("*.json"))
    }


def _tables(archive: tarfile.TarFile) -> Iterator[tuple[str, list[dict[str, str]]]]:
    for member in archive.getmembers():
        if member.name.endswith(("/placements.csv", "/scalability.csv")):
            file = archive.extractfile(member)
            assert file is not None
            yield member.name, list(csv.DictReader(io.TextIOWrapper(file)))


def _summary(cell: Cell, step_s: float, sync_s: float = 0.0) -> StepSummary:
    replicas, nodes, micro_batch = cell
    return StepSummary(
        replicas=replicas,
        nodes=nodes,
        micro_batch=micro_batch,
        accumulation=1,
        step_s=step_s,
        count=32,
        sync_s=sync_s if replicas > 1 else 0.0,
    )
