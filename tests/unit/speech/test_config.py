"""What can't be is said in one line each, all at once."""

import pytest

from magneto.config import ConfigError
from magneto.fields import build
from magneto.speech.config import SpeechDataConfig, TransducerConfig


def problems(kind: type, values: dict) -> list[str]:
    with pytest.raises(ConfigError) as found:
        build(kind, values, "data")
    return found.value.lines


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"max_frames": 10}, "max_frames (10) must hold the longest utterance: 3000 frames"),
        ({"augmentation": {"speeds": [0.5]}, "max_frames": 5999}, "6000 frames by max_duration"),
        ({"features": {"high_frequency": 9000}}, "don't fit below half the sample rate"),
        ({"features": {"frame_shift": 30}}, "frame_shift must be 1 or more and at most"),
        ({"cached": True, "augmentation": {"gain": 3}}, "cached features can't vary"),
        ({"source": "builtin:digits"}, "no built-in speech 'builtin:digits': there is builtin:s"),
        ({"augmentation": {"speeds": []}}, "speeds must be one number or more"),
        ({"augmentation": {"noise_snr": [3, 2]}}, "noise_snr must be the least and the greatest"),
    ],
)
def test_impossible_values(values: dict, line: str) -> None:
    (found,) = problems(SpeechDataConfig, values)
    assert line in found


def test_impossible_models() -> None:
    with pytest.raises(ConfigError) as error:
        TransducerConfig(mel_bins=10, intermediate_layers=(11,), encoder_layers=1, decoder_layers=1)
    for words in ("multiple of 4", "below the last layer, 11", "encoder_layers: a transducer has"):
        assert words in str(error.value)
    with pytest.raises(ConfigError, match="need intermediate_layers"):
        TransducerConfig(kl_weight=0.2)
