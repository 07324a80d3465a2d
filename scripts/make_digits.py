"""Write the demo's ``digits.npz`` from scikit-learn's copy of the data; the result is kept in the package.

    python scripts/make_digits.py

Only this script needs scikit-learn; swell does not depend on it. ``src/swell/demo/SOURCE.md`` names the data's source.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

DIGITS = Path(__file__).parents[1] / "src" / "swell" / "demo" / "digits.npz"


def main() -> None:
    """Write images (1797, 8, 8) of 0 to 16 and labels (1797,), both uint8."""
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]

    pixels, labels = map(np.asarray, load_digits(return_X_y=True))
    images = pixels.reshape(-1, 8, 8).astype(np.uint8)
    np.savez_compressed(DIGITS, images=images, labels=labels.astype(np.uint8))


if __name__ == "__main__":
    main()
