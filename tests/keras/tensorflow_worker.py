"""One of several TensorFlow processes that train the toy model: ``-m tests.keras.tensorflow_worker DIRECTORY``.

``TF_CONFIG`` says which one it is.
"""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"


def main() -> None:
    directory, rank = Path(sys.argv[1]), int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before any other use of TensorFlow
    import keras

    import swell.keras
    from tests.keras.toy import data, loss, model

    x, y = data(31)
    with strategy.scope():
        network = model()
        elastic = swell.keras.Elastic(batch=15, micro=4, rule="constant", directory=directory / "run")
        network.compile(optimizer=elastic.optimizer(keras.optimizers.Adam(0.01, clipnorm=0.2)), loss=loss())
    network.fit(elastic.data(x, y), epochs=2, callbacks=[elastic], verbose=0)
    assert elastic.samples == 62
    assert elastic.noise is not None
    figures = np.asarray([elastic.noise.total.signal, elastic.noise.total.noise])
    np.savez(directory / f"{rank}.npz", *network.get_weights(), figures=figures)


if __name__ == "__main__":
    main()
