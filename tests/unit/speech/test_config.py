"""What can't be is said in one line each."""

import pytest

from magneto.config import ConfigError
from magneto.fields import build
from magneto.speech.config import SpeechDataConfig, TransducerConfig


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"max_frames": 10}, "max_frames (10) must be 3000 or more"),
        ({"augmentation": {"speeds": [0.5]}, "max_frames": 5999}, "must be 6000 or more"),
        ({"features": {"high_frequency": 9000}}, "must be below half the sample rate"),
        ({"features": {"frame_shift": 30}}, "frame_shift must be 1 or more and at most"),
        ({"cached": True, "augmentation": {"gain": 3}}, "cached excludes augmentation's speeds"),
        (
            {"source": "builtin:digits"},
            "unknown built-in speech 'builtin:digits'. Known: builtin:s",
        ),
        ({"augmentation": {"noise_snr": [3, 2]}}, "noise_snr must be a minimum and a maximum"),
    ],
)
def test_impossible_values(values: dict, line: str) -> None:
    with pytest.raises(ConfigError) as found:
        build(SpeechDataConfig, values, "data")
    (said,) = found.value.lines
    assert line in said


def test_impossible_models() -> None:
    with pytest.raises(ConfigError, match=r"below the last layer \(11\)"):
        TransducerConfig(intermediate_layers=(11,))
    with pytest.raises(ConfigError, match="need intermediate_layers"):
        TransducerConfig(kl_weight=0.2)
