"""What is varied of training utterances: SpecAugment, and speed, loudness and noise.

All is drawn from integers (seed, epoch, number of the utterance), so that it depends neither on how
batches are cut nor on who makes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from magneto.speech.audio import resampled
from magneto.speech.config import AugmentationConfig

# What random numbers of an utterance or an epoch are for.
SOUND, FEATURES, SPEEDS = 0, 1, 2


class Augmentation:
    """Varies utterances.

    Args:
        config: How.
        sample_rate: Of the samples, in Hz.
    """

    def __init__(self, config: AugmentationConfig, sample_rate: int) -> None:
        self.config, self.sample_rate = config, sample_rate

    def speeds(self, count: int, seed: int, epoch: int) -> np.ndarray:
        """Return how fast each of `count` utterances is played in an epoch, (count,)."""
        drawn = np.random.default_rng([seed, epoch, SPEEDS]).integers(
            len(self.config.speeds), size=count
        )
        return np.array(self.config.speeds)[drawn]

    def sound(self, samples: np.ndarray, speed: float, seed: Sequence[int]) -> np.ndarray:
        """Return samples at another speed, louder or softer, with noise."""
        config = self.config
        random = np.random.default_rng([*seed, SOUND])
        samples = resampled(samples, self.sample_rate * speed, self.sample_rate)
        gain = 10 ** (random.uniform(-config.gain, config.gain) / 20)
        noisy = random.random() < config.noise
        if config.gain:
            samples = samples * np.float32(gain)
        if noisy and len(samples):
            ratio = 10 ** (-random.uniform(*config.noise_snr) / 10)
            deviation = np.sqrt(float((samples.astype(np.float64) ** 2).mean()) * ratio)
            noise = random.standard_normal(len(samples), np.float32)
            samples = samples + np.float32(deviation) * noise
        return samples

    def features(self, features: np.ndarray, seed: Sequence[int]) -> np.ndarray:
        """Return a copy of (frames, bins) warped in time and with masks: SpecAugment.

        What is masked becomes the mean over the utterance, which is about 0 where features are
        normalised.
        """
        config = self.config
        random = np.random.default_rng([*seed, FEATURES])
        frames, bins = features.shape
        result = warped(features, config.time_warp, random)
        mean = features.mean() if features.size else 0.0
        widths = random.integers(0, min(config.frequency_width, bins) + 1, config.frequency_masks)
        for width in widths:
            start = random.integers(0, bins - width + 1)
            result[:, start : start + width] = mean
        longest = int(config.time_ratio * frames)
        for length in random.integers(0, longest + 1, self.time_masks(frames)):
            start = random.integers(0, frames - length + 1)
            result[start : start + length] = mean
        return result

    def time_masks(self, frames: int) -> int:
        """Return how many time masks an utterance has."""
        config = self.config
        if config.time_masks_ratio == 0:
            return config.time_masks
        return min(config.time_masks, int(config.time_masks_ratio * frames))


def warped(features: np.ndarray, most: int, random: np.random.Generator) -> np.ndarray:
    """Move a point of (frames, bins) by at most `most` frames, and stretch both sides to fit.

    The number of frames stays. Utterances of `2 * most` frames or fewer are only copied.
    """
    frames = len(features)
    if most == 0 or frames <= 2 * most:
        return features.copy()
    point = random.integers(most, frames - most)
    moved = point + random.integers(-most, most + 1)
    moved = min(max(moved, 1), frames - 2)
    places = np.interp(np.arange(frames), [0, int(moved), frames - 1], [0, int(point), frames - 1])
    low = np.minimum(places.astype(int), frames - 2)
    share = (places - low)[:, None].astype(features.dtype)
    return features[low] * (1 - share) + features[low + 1] * share
