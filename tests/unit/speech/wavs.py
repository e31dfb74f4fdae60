"""Small recordings for tests."""

from pathlib import Path

import numpy as np


def tone(seconds: float = 1.0, sample_rate: int = 16000, pitch: float = 440.0) -> np.ndarray:
    """Return a sine with a peak of 0.5."""
    times = np.arange(int(seconds * sample_rate)) / sample_rate
    return (0.5 * np.sin(2 * np.pi * pitch * times)).astype(np.float32)


def write(
    path: Path, seconds: float = 1.0, sample_rate: int = 16000, quiet: bool = False, **options
) -> Path:
    """Write a tone, or silence, in the format that the path's ending says."""
    import soundfile

    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, tone(seconds, sample_rate) * (not quiet), sample_rate, **options)
    return path
