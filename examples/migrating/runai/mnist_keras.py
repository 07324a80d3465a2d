"""The README of Run:AI's elastic module for Keras. Only the import and the data differ from the README's."""

import argparse
import os
from pathlib import Path

import keras
import numpy as np
import swell.compat.runai as runai


def load_mnist(limit=None):
    """MNIST from the folder SWELL_DATA if that is set, else the digits that come with swell."""
    if "SWELL_DATA" in os.environ:
        file = np.load(Path(os.environ["SWELL_DATA"]) / "images" / "mnist.npz")
        parts = [(file[f"x_{part}"] / 255, file[f"y_{part}"]) for part in ("train", "test")]
    else:
        from swell.demo.digits import load_digits

        parts = [tuple(tensor.numpy() for tensor in part.tensors) for part in load_digits()]
    return [(x[:limit].reshape(len(x[:limit]), -1).astype("float32"), y[:limit].astype("int64")) for x, y in parts]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--limit", type=int, help="train on the first N images only")
    args = parser.parse_args()

    runai.elastic.keras.init(256, 64)
    print(
        f"{runai.elastic.gpus} device(s), {runai.elastic.steps} step(s) of {runai.elastic.batch_size} samples each: "
        f"{runai.elastic.global_batch_size} samples a step"
    )

    (x_train, y_train), (x_test, y_test) = load_mnist(args.limit)
    keras.utils.set_random_seed(0)
    layers = [keras.Input(x_train.shape[1:]), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model = runai.elastic.keras.models.Model(model)

    model.compile(
        optimizer=keras.optimizers.SGD(args.lr, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(x_train, y_train, batch_size=runai.elastic.batch_size, epochs=args.epochs, verbose=0)
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
    if runai.elastic.master:
        print(f"after {args.epochs} epoch(s): loss {loss:.3f}, accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
