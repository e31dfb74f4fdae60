"""Built-in images that need no network: scikit-learn's real handwritten digits."""

from __future__ import annotations

import numpy as np

from magneto.files import import_extra
from magneto.vision.images import PixelStore
from magneto.vision.listing import Listing

# The digits have 17 levels of grey: as bytes, this far apart.
LEVEL = 15


def digits() -> Listing:
    """Return scikit-learn's digits: 1797 images (8, 8, 1), 0 is paper, and their labels.

    Raises:
        ModuleNotFoundError: If scikit-learn is not installed; names the extra that has it.
    """
    datasets = import_extra("sklearn.datasets", "vision", "builtin:digits needs scikit-learn")
    values, labels = datasets.load_digits(return_X_y=True)
    pixels = (np.asarray(values) * LEVEL).astype(np.uint8).reshape(-1, 8, 8, 1)
    store = PixelStore(pixels, peak=16 * LEVEL)
    return Listing(store, np.asarray(labels, np.int64), [str(digit) for digit in range(10)])
