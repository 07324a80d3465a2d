"""A small convolutional network on handwritten digits, with a batch that follows the gradient noise."""

import argparse
from importlib.resources import files

import keras
import numpy as np
import swell
import swell.keras

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--limit", type=int, default=1797, help="train on so many digits")
options = parser.parse_args()

keras.utils.set_random_seed(0)
with np.load(str(files("swell.demo") / "digits.npz")) as digits:
    images = digits["images"][: options.limit, ..., None].astype("float32") / 16
    labels = digits["labels"][: options.limit].astype("int32")

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
policy = swell.RoundTo(swell.NoiseScale(32, max=256), multiple=32)  # whole passes, so nothing is compiled anew
elastic = swell.keras.Elastic(batch=policy, micro=32)
model.compile(optimizer=elastic.optimizer(optimizer), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(elastic.data(images, labels), epochs=options.epochs, callbacks=[elastic], verbose=2)
print(
    f"{elastic.steps} steps worth {elastic.progress:.0f} of the base batch, the last of {elastic.global_batch} samples"
)
