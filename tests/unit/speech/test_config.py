"""What can't be is said in one line each, all at once."""

import pytest

from magneto.config import ConfigError
from magneto.fields import build
from magneto.speech.config import SpeechDataConfig, TransducerConfig


def test_impossible_data_all_at_once() -> None:
    with pytest.raises(ConfigError) as found:
        build(SpeechDataConfig, {
            "sample_rate": 999, "validation_fraction": 1, "validation_limit": 0, "block": 0,
            "augmentation": {"time_ratio": 2, "time_mask": 3}, "synthetic": {"words": [0, 2]},
        }, "data")  # fmt: skip
    said = "\n".join(found.value.lines)
    assert len(found.value.lines) == 7
    for line in ("sample_rate must be 1000 or more, not 999", "block must be 1 or more",
                 "validation_fraction must be in (0, 1)", "validation_limit must be 1 or more",
                 "time_ratio must be 0 to 1, not 2", "words must be 1 or more, not 0",
                 "did you mean data.augmentation.time_masks?"):  # fmt: skip
        assert line in said


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
        ({"augmentation": {"speeds": []}}, "speeds must be one number or more"),
        ({"augmentation": {"noise_snr": [3, 2]}}, "noise_snr must be a minimum and a maximum"),
    ],
)
def test_impossible_values(values: dict, line: str) -> None:
    with pytest.raises(ConfigError) as found:
        build(SpeechDataConfig, values, "data")
    (said,) = found.value.lines
    assert line in said


def test_impossible_models() -> None:
    with pytest.raises(ConfigError) as error:
        TransducerConfig(mel_bins=10, lm_smoothing=1.0, ctc_weight=-1.0, joint_width=0,
                         intermediate_layers=(11,), encoder_layers=1, decoder_layers=1)  # fmt: skip
    said = str(error.value)
    for words in ("multiple of 4", "lm_smoothing", "ctc_weight", "joint_width",
                  "below the last layer (11)", "encoder_layers: a transducer has no"):  # fmt: skip
        assert words in said
    with pytest.raises(ConfigError, match="need intermediate_layers"):
        TransducerConfig(kl_weight=0.2)
