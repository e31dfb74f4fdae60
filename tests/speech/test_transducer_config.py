"""Impossible values are named, all at once."""

import pytest

from magneto.config import ConfigError
from magneto.speech.config import TransducerConfig


def test_impossible_values() -> None:
    with pytest.raises(ConfigError) as error:
        TransducerConfig(mel_bins=10, lm_smoothing=1.0, ctc_weight=-1.0, joint_width=0,
                         intermediate_layers=(11,), encoder_layers=1, decoder_layers=1)  # fmt: skip
    said = str(error.value)
    for words in ("multiple of 4", "lm_smoothing", "ctc_weight", "joint_width",
                  "below the last layer, 11", "no encoder_layers"):  # fmt: skip
        assert words in said
    with pytest.raises(ConfigError, match="need intermediate_layers"):
        TransducerConfig(kl_weight=0.2)
