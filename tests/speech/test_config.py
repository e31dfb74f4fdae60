"""What can't be is said in one line each, all at once."""

import pytest

from magneto.config import ConfigError, build, to_mapping
from magneto.speech.config import AugmentationConfig, SpeechDataConfig, SyntheticConfig


def problems(kind: type, values: dict) -> list[str]:
    with pytest.raises(ConfigError) as found:
        build(kind, values, "data")
    return found.value.lines


def test_the_defaults_are_the_papers() -> None:
    config = SpeechDataConfig()
    assert (config.features.mel_bins, config.features.frame_length) == (80, 25)
    varied = config.augmentation
    assert (varied.frequency_masks, varied.frequency_width) == (2, 27)
    assert (varied.time_masks, varied.time_ratio) == (10, 0.04)
    assert varied.speeds == (1.0,) and not (varied.time_warp or varied.gain or varied.noise)
    assert build(SpeechDataConfig, to_mapping(config)) == config


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"sample_rate": 999}, "sample_rate must be 1000 or more, not 999"),
        ({"max_frames": 10}, "max_frames (10) must hold the longest utterance: 3000 frames"),
        ({"augmentation": {"speeds": [0.5]}, "max_frames": 5999}, "6000 frames by max_duration"),
        ({"features": {"high_frequency": 9000}}, "don't fit below half the sample rate"),
        ({"features": {"low_frequency": -1}}, "low_frequency must be 0 or more"),
        ({"features": {"frame_shift": 30}}, "frame_shift must be 1 or more and at most"),
        ({"features": {"mel_bins": 1}}, "mel_bins must be 4 or more"),
        ({"cached": True, "augmentation": {"gain": 3}}, "cached features can't vary"),
        (
            {"source": "builtin:digits"},
            "no built-in speech 'builtin:digits': there is builtin:spok",
        ),
        ({"validation_fraction": 1}, "validation_fraction must be in (0, 1)"),
        ({"validation_limit": 0}, "validation_limit must be 1 or more"),
        ({"augmentation": {"time_ratio": 2}}, "time_ratio must be in [0, 1], not 2"),
        ({"augmentation": {"speeds": []}}, "speeds must be one or more numbers in [0.5, 2]"),
        ({"augmentation": {"time_masks": -1}}, "time_masks must be 0 or more"),
        ({"augmentation": {"noise_snr": [3, 2]}}, "noise_snr must be the least and the greatest"),
        ({"synthetic": {"words": [0, 2]}}, "words must be 1 or more, not 0"),
        ({"synthetic": {"train_utterances": 0}}, "train_utterances must be 1 or more"),
        ({"augmentation": {"time_mask": 3}}, "did you mean data.augmentation.time_masks?"),
    ],
)
def test_impossible_values(values: dict, line: str) -> None:
    (found,) = problems(SpeechDataConfig, values)
    assert line in found


def test_all_at_once() -> None:
    assert len(problems(SpeechDataConfig, {"sample_rate": 1, "block": 0, "vocab_size": 0})) > 2
    assert len(problems(AugmentationConfig, {"noise": 2, "gain": -1, "speeds": [9]})) == 3
    assert len(problems(SyntheticConfig, {"drift": 2, "snr": [1, 0]})) == 2
