"""The `model` and `data` sections of recipes of image captioning. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from magneto.config import ConfigError, problem_lines
from magneto.vision_language.caption_config import CaptionDataConfig
from magneto.vision_language.config import FineTunedConfig


@dataclass(frozen=True, kw_only=True)
class ImageCaptionerConfig(FineTunedConfig):
    """An encoder that reads a text from left to right beside an image, and a head over words.

    Attributes:
        label_smoothing: Share of a target that is spread over all tokens in training (0.1 in
            BEiT-3's released fine-tuning).
        loss_chunk: Guessed words whose logits exist at once.
    """

    label_smoothing: float = 0.1
    loss_chunk: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = []
        if not 0 <= self.label_smoothing < 1:
            wrong.append(f"label_smoothing must be in [0, 1), not {self.label_smoothing}")
        if self.loss_chunk < 1:
            wrong.append(f"loss_chunk must be 1 or more, not {self.loss_chunk}")
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, kw_only=True)
class CaptioningDataConfig(CaptionDataConfig):
    """Images with captions, and how captions are hidden. See docs/concepts/image_captioning.md.

    Attributes:
        mask_ratio: Share of a caption's tokens to guess, its end included (0.7 in BEiT-3's released
            fine-tuning); one at least.
    """

    mask_ratio: float = 0.7

    def __post_init__(self) -> None:
        wrong = []
        try:
            super().__post_init__()
        except ValueError as error:
            wrong += problem_lines(error)
        if not 0 < self.mask_ratio <= 1:
            wrong.append(f"mask_ratio must be above 0 and at most 1, not {self.mask_ratio}")
        if wrong:
            raise ConfigError(wrong)
