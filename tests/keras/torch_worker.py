"""One of several torch processes that train the toy model: ``-m tests.keras.torch_worker DIRECTORY RANK SIZE``."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"


def main() -> None:
    directory, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    import numpy as np
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=size)
    import keras

    import swell.keras
    from tests.keras.toy import data, loss, model

    x, y = data(31)
    network = model(seed=1 + rank)  # rank 0's weights count
    elastic = swell.keras.Elastic(batch=15, micro=4, rule="constant", directory=directory / "run")
    network.compile(optimizer=elastic.optimizer(keras.optimizers.Adam(0.01, clipnorm=0.2)), loss=loss())
    network.fit(elastic.data(x, y), epochs=2, callbacks=[elastic], verbose=0)
    np.savez(directory / f"{rank}.npz", *network.get_weights())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
