"""Makes ``digits.npz`` from scikit-learn's copy of the data; run once, its result is kept in the package.

    python -m swell.demo.make_digits

scikit-learn is needed for this alone and is no dependency of swell. ``SOURCE.md`` says where the digits come from.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


def main() -> None:
    """Write ``digits.npz`` beside this file: images (1797, 8, 8) of 0 to 16 and labels (1797,), both uint8."""
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]

    pixels, labels = map(np.asarray, load_digits(return_X_y=True))
    images = pixels.reshape(-1, 8, 8).astype(np.uint8)
    np.savez_compressed(Path(__file__).with_name("digits.npz"), images=images, labels=labels.astype(np.uint8))


if __name__ == "__main__":
    main()
