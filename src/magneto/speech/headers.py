"""How long recordings are, by their headers: read once, by several threads, and kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from magneto.data.cache import cache_directory, fingerprint, is_kept, made_whole
from magneto.progress import Progress
from magneto.speech.utterances import Row, Utterances, recording_states

# It is waiting for the disk that takes long.
THREADS = 8
# Rows between two reports of progress.
STEP = 256


def measure(rows: Sequence[Row], sample_rate: int, progress: Progress) -> Utterances:
    """Read the headers of recordings, or find them read.

    Args:
        rows: The utterances.
        sample_rate: That they will be brought to, in Hz.
        progress: Shows it.
    """
    name = fingerprint(recording_states(rows))
    held = cache_directory() / f"speech-headers-{name}"
    if not is_kept(held, progress):
        durations, problems = _read(rows, progress)
        with made_whole(held) as aside:
            np.save(aside / "durations.npy", durations, allow_pickle=False)
            (aside / "problems.json").write_text(json.dumps(problems), encoding="utf-8")
    durations = np.load(held / "durations.npy", allow_pickle=False)
    problems = json.loads((held / "problems.json").read_text(encoding="utf-8"))
    return Utterances(rows, durations, problems, sample_rate)


def _read(rows: Sequence[Row], progress: Progress) -> tuple[np.ndarray, list[str]]:
    found: list[tuple[float, str]] = []
    with ThreadPoolExecutor(THREADS) as threads:
        for start in range(0, len(rows), STEP):
            part = rows[start : start + STEP]
            found += threads.map(lambda row: row.recording.seconds(), part)
            progress.update("reading headers of recordings", len(found), len(rows))
    return np.array([seconds for seconds, _ in found]), [problem for _, problem in found]
