"""A small residual network on CIFAR-10: a global batch of 128 in passes of 32, resumed where it was cut off."""

import argparse
import os
from pathlib import Path

import keras
import numpy as np
import swell.keras
from keras import layers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--blocks", type=int, default=3, help="residual blocks a stage; 3 is ResNet-20")
parser.add_argument("--limit", type=int, default=50000, help="number of images to train on")
options = parser.parse_args()


def cifar10():
    """Real images from $SWELL_DATA/images/cifar10_q5.npz, or made-up ones of the same shape: a colour a class."""
    path = Path(os.environ.get("SWELL_DATA", "")) / "images" / "cifar10_q5.npz"
    if path.is_file():
        with np.load(path) as data:
            return decoded(data["r_train"][:, : options.limit], int(data["q"])), data["y_train"][: options.limit]
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, size=min(options.limit, 5000))
    colours = rng.integers(60, 200, size=(10, 1, 1, 3))
    return (colours[labels] + rng.normal(0, 50, size=(len(labels), 32, 32, 3))).clip(0, 255).astype("uint8"), labels


def decoded(residuals, step):
    """Pixels from residuals: each was predicted from its left, upper and upper left neighbours, red and blue from
    green."""
    r = residuals.transpose(2, 3, 0, 1).astype(np.int16)  # row, column, channel, image
    for row, column in np.ndindex(*r.shape[:2]):
        left = r[row, column - 1] if column else 0
        above = r[row - 1, column] if row else 0
        if row and column:
            corner = left + above - r[row - 1, column - 1]
            guess = np.clip(corner, np.minimum(left, above), np.maximum(left, above))
        else:
            guess = left + above  # one of them is 0
        r[row, column] = (r[row, column] + guess) & 255
    red, green, blue = (r[:, :, channel] for channel in range(3))
    pixels = np.stack(
        [(red + green - 128) & 255, green, (blue + green - 128) & 255], axis=-1
    )  # row, column, image, rgb
    return np.minimum(pixels * step, 255).astype("uint8").transpose(2, 0, 1, 3)


def block(x, width, stride):
    y = layers.Conv2D(width, 3, strides=stride, padding="same", use_bias=False)(x)
    y = layers.Activation("relu")(layers.BatchNormalization()(y))
    y = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same", use_bias=False)(y))
    if stride != 1 or x.shape[-1] != width:
        x = layers.BatchNormalization()(layers.Conv2D(width, 1, strides=stride, use_bias=False)(x))
    return layers.Activation("relu")(layers.Add()([x, y]))


keras.utils.set_random_seed(0)
images, labels = cifar10()
inputs = keras.Input((32, 32, 3))
x = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
x = layers.Activation("relu")(layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same", use_bias=False)(x)))
for width in (16, 32, 64):
    for place in range(options.blocks):
        x = block(x, width, 2 if width > 16 and place == 0 else 1)
outputs = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x))
model = keras.Model(inputs, outputs)

schedule = keras.optimizers.schedules.CosineDecay(0.1, options.epochs * len(images) // 128)
optimizer = keras.optimizers.SGD(schedule, momentum=0.9, weight_decay=1e-4)
elastic = swell.keras.Elastic(batch=128, micro=32, directory="runs/keras-resnet")
model.compile(optimizer=elastic.optimizer(optimizer), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(elastic.data(images, labels), epochs=options.epochs, callbacks=[elastic], verbose=2)
