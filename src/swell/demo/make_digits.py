"""Makes ``digits.npz`` from scikit-learn's copy of the data; run once, its result is kept in the package.

    python -m swell.demo.make_digits

scikit-learn is needed for this alone and is no dependency of swell. ``SOURCE.md`` says where the digits come from.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


def main() -> None:
    """Write ``digits.npz`` beside this file: images (1797, 8, 8) of 0 to 16 and labels (1797,), both uint8."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    np.savez_compressed(Path(__file__).with_name("digits.npz"), images=images, labels=labels)


if __name__ == "__main__":
    main()
