"""A small residual network on CIFAR-10, in plain Keras."""

import argparse
import os
from pathlib import Path

import keras
import numpy as np
from keras import layers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--blocks", type=int, default=3, help="residual blocks a stage; 3 is ResNet-20")
parser.add_argument("--limit", type=int, default=50000, help="train on so many images")
options = parser.parse_args()


def cifar10():
    """Real images from $SWELL_DATA/images/cifar10.npz, else blurred noise with a colour for each class."""
    path = Path(os.environ.get("SWELL_DATA", "")) / "images" / "cifar10.npz"
    if path.is_file():
        with np.load(path) as data:
            return data["x_train"][: options.limit], data["y_train"][: options.limit].ravel()
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, size=min(options.limit, 5000))
    colours = rng.integers(60, 200, size=(10, 1, 1, 3))
    return (colours[labels] + rng.normal(0, 50, size=(len(labels), 32, 32, 3))).clip(0, 255).astype("uint8"), labels


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
model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(images, labels, batch_size=128, epochs=options.epochs, verbose=2)
