"""A small convolutional network on handwritten digits, in plain Keras."""

import argparse
from importlib.resources import files

import keras
import numpy as np

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
model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(images, labels, batch_size=32, epochs=options.epochs, verbose=2)
