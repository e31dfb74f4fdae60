"""Small recordings for tests, and tables of them."""

from pathlib import Path

import numpy as np

from tests.shards import write_lines


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


def write_table(
    folder: Path, name: str, count: int, speakers: int = 1, sample_rate: int = 16000
) -> Path:
    """Write a table of tones of a second each, and these; return the folder."""
    for n in range(count):
        write(folder / f"{name}-{n}.wav", sample_rate=sample_rate)
    lines = [
        {"id": f"{name}-{n}", "audio": f"{name}-{n}.wav", "text": f"Number {n}",
         "speaker": f"s{n % speakers}"}
        for n in range(count)
    ]  # fmt: skip
    write_lines(folder / f"{name}.jsonl", lines)
    return folder
