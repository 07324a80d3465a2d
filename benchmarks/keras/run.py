"""Step time of swell's Keras integration with statistics, against plain Keras with the same accumulation.

Both train the same model on the same passes, in turns within one process, on each backend in a process of its own:
``run.py`` measures all, writes ``result.json`` and prints a table; ``run.py torch`` measures one.
"""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

BACKENDS = ("torch", "jax", "tensorflow")
MICRO, ACCUMULATION, STEPS, ROUNDS = 32, 4, 8, 8
HERE = Path(__file__).parent


def model_and_data(keras):
    import numpy as np

    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.Conv2D(32, 3, padding="same", strides=2, activation="relu"),
            layers.BatchNormalization(),
            layers.Conv2D(64, 3, padding="same", strides=2, activation="relu"),
            layers.BatchNormalization(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    rng = np.random.default_rng(0)
    samples = MICRO * ACCUMULATION * STEPS
    return model, rng.normal(size=(samples, 32, 32, 3)).astype("float32"), rng.integers(0, 10, size=samples)


def measure(backend: str) -> dict[str, float]:
    os.environ["KERAS_BACKEND"] = backend
    import keras

    import swell.keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def plain():
        model, x, y = model_and_data(keras)
        model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9, gradient_accumulation_steps=4), loss=loss)
        return lambda: model.fit(x, y, batch_size=MICRO, verbose=0)

    def elastic(rule: str):
        model, x, y = model_and_data(keras)
        held = swell.keras.Elastic(batch=MICRO * ACCUMULATION, base=MICRO, micro=MICRO, rule=rule)
        model.compile(optimizer=held.optimizer(keras.optimizers.SGD(0.01, momentum=0.9)), loss=loss)
        return lambda: model.fit(held.data(x, y), callbacks=[held], verbose=0)

    kinds = {"plain": plain(), "swell": elastic("adascale")}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    work: dict[str, list[float]] = {kind: [] for kind in kinds}  # processor time, which other programs do not lengthen
    for round_number in range(ROUNDS + 2):
        for kind, run in kinds.items():
            begun, worked = time.perf_counter(), time.process_time()
            run()
            if round_number >= 2:  # the first two compile and warm up
                times[kind].append((time.perf_counter() - begun) / STEPS)
                work[kind].append((time.process_time() - worked) / STEPS)

    def ratio(figures: dict[str, list[float]]) -> float:
        return statistics.median(ours / plain for ours, plain in zip(figures["swell"], figures["plain"], strict=True))

    return {
        "plain_step_ms": 1e3 * statistics.median(times["plain"]),
        "swell_step_ms": 1e3 * statistics.median(times["swell"]),
        "ratio": ratio(times),
        "processor_ratio": ratio(work),
    }


def main() -> None:
    if len(sys.argv) > 1:
        print("RESULT " + json.dumps(measure(sys.argv[1])))
        return
    python = HERE.parents[1] / ".venv-keras" / "bin" / "python"
    if importlib.util.find_spec("keras") is None and sys.executable != str(python):
        if not python.exists():
            print("benchmarks/keras needs Keras with its three backends: run scripts/keras_environment.sh first")
            return
        os.execv(python, [str(python), __file__])
    found = {}
    for backend in BACKENDS:
        run = subprocess.run([sys.executable, __file__, backend], capture_output=True, text=True, check=False)
        lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
        if not lines:
            raise SystemExit(f"{backend} gave no result:\n{run.stderr[-2000:]}")
        found[backend] = json.loads(lines[0].removeprefix("RESULT "))
        ours = found[backend]
        print(f"{backend:10} {ours['swell_step_ms']:8.1f} ms, ratio {ours['ratio']:.3f}", end=", ")
        print(f"of processor time {ours['processor_ratio']:.3f}", flush=True)
    from importlib.metadata import version

    record = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": {name: version(name) for name in ("keras", "torch", "jax", "tensorflow-cpu")},
        "layout": {"micro": MICRO, "accumulation": ACCUMULATION, "steps": STEPS, "rounds": ROUNDS},
        "backends": found,
    }
    (HERE / "result.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
