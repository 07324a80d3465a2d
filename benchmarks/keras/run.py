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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BACKENDS = ("torch", "jax", "tensorflow")
MICRO, ACCUMULATION, STEPS, ROUNDS, WARM_UP = 32, 4, 12, 30, 2
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


class Clock:
    """Wall and processor time from an epoch's first pass to its end, where its metrics have been read."""

    def __init__(self, keras) -> None:
        clock = self

        class Callback(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                if batch == 0:
                    clock.start = (time.perf_counter(), time.process_time())

            def on_epoch_end(self, epoch, logs=None):
                now = (time.perf_counter(), time.process_time())
                clock.wall_s, clock.work_s = (b - a for a, b in zip(clock.start, now, strict=True))

        self.callback = Callback()


def measure(backend: str) -> dict[str, Any]:
    os.environ["KERAS_BACKEND"] = backend
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    import swell.keras

    load = os.getloadavg()[0]  # of the machine, before we add to it
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    clock = Clock(keras)

    def plain():
        model, x, y = model_and_data(keras)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9, gradient_accumulation_steps=ACCUMULATION)
        model.compile(optimizer=optimizer, loss=loss)
        return lambda: model.fit(x, y, batch_size=MICRO, callbacks=[clock.callback], verbose=0)

    def elastic():
        model, x, y = model_and_data(keras)
        run = swell.keras.Elastic(batch=MICRO * ACCUMULATION, base=MICRO, micro=MICRO, rule="adascale")
        model.compile(optimizer=run.optimizer(keras.optimizers.SGD(0.01, momentum=0.9)), loss=loss)
        return lambda: model.fit(run.data(x, y), callbacks=[run, clock.callback], verbose=0)

    kinds = {"plain": plain(), "swell": elastic()}
    wall: dict[str, list[float]] = {kind: [] for kind in kinds}
    work: dict[str, list[float]] = {kind: [] for kind in kinds}  # processor time, which other programs lengthen less
    for round_number in range(WARM_UP + ROUNDS):
        order = list(kinds)[:: 1 if round_number % 2 else -1]  # neither is always the first of its round
        for kind in order:
            kinds[kind]()
            if round_number >= WARM_UP:
                wall[kind].append(clock.wall_s / STEPS)
                work[kind].append(clock.work_s / STEPS)
    return {
        "load": round(load, 2),
        "plain_step_ms": round(1e3 * statistics.median(wall["plain"]), 2),
        "swell_step_ms": round(1e3 * statistics.median(wall["swell"]), 2),
        "ratio": ratio(wall),
        "processor_ratio": ratio(work),
    }


def ratio(figures: dict[str, list[float]]) -> dict[str, float]:
    """The median over rounds of swell's time by plain Keras's, with its 95 % bootstrap interval."""
    import numpy as np

    rounds = np.asarray(figures["swell"]) / np.asarray(figures["plain"])
    drawn = np.random.default_rng(0).choice(rounds, size=(4000, len(rounds)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return {"median": round(float(np.median(rounds)), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


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
    results: dict[str, dict[str, Any]] = {}
    for backend in BACKENDS:
        run = subprocess.run([sys.executable, __file__, backend], capture_output=True, text=True, check=False)
        lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
        if not lines:
            raise SystemExit(f"{backend} gave no result:\n{run.stderr[-2000:]}")
        results[backend] = json.loads(lines[0].removeprefix("RESULT "))
        ours = results[backend]
        shown = [
            f"{name.replace('_', ' ')} {value['median']:.3f} ({value['low']:.3f} to {value['high']:.3f})"
            for name, value in ours.items()
            if isinstance(value, dict)
        ]
        print(f"{backend:10} {ours['swell_step_ms']:8.1f} ms, {', '.join(shown)}", flush=True)
    from importlib.metadata import version

    record = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": {name: version(name) for name in ("keras", "torch", "jax", "tensorflow")},
        "layout": {"micro": MICRO, "accumulation": ACCUMULATION, "steps": STEPS, "rounds": ROUNDS},
        "backends": results,
    }
    (HERE / "result.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
