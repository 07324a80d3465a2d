"""A small convolutional network on handwritten digits, with a batch that follows the gradient noise."""

import argparse
import os
from pathlib import Path

import keras
import numpy as np
import swell
import swell.keras

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--limit", type=int, default=60000, help="number of digits to train on")
options = parser.parse_args()


def mnist():
    """Real digits from $SWELL_DATA/images/mnist.npz, or made-up ones of the same shape: a pattern a class."""
    path = Path(os.environ.get("SWELL_DATA", "")) / "images" / "mnist.npz"
    if path.is_file():
        with np.load(path) as data:
            return data["x_train"][: options.limit], data["y_train"][: options.limit]
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, size=min(options.limit, 5000))
    patterns = rng.integers(0, 255, size=(10, 28, 28))
    return (0.5 * patterns[labels] + rng.uniform(0, 127, size=(len(labels), 28, 28))).astype("uint8"), labels


keras.utils.set_random_seed(0)
images, labels = mnist()
model = keras.Sequential(
    [
        keras.Input((28, 28)),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Reshape((28, 28, 1)),
        keras.layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
        keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
policy = swell.RoundTo(swell.NoiseScale(32, max=256), multiple=32)  # whole passes, so nothing is compiled again
elastic = swell.keras.Elastic(batch=policy, micro=32)
model.compile(optimizer=elastic.optimizer(optimizer), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(elastic.data(images, labels), epochs=options.epochs, callbacks=[elastic], verbose=2)
print(f"{elastic.steps} steps worth {elastic.progress:.0f} of 32 samples; the last batch was {elastic.global_batch}")
