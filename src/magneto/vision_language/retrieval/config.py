"""The `model` section of recipes of image-text retrieval. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magneto.config import ConfigError
from magneto.vision_language.config import FineTunedConfig


@dataclass(frozen=True, kw_only=True)
class ImageTextRetrieverConfig(FineTunedConfig):
    """An encoder that reads images and texts apart, and a head for each of both.

    Attributes:
        pooling: What is embedded of an image and of a text. "first": the features of the class
            token, and of `<s>` (BEiT-3); "mean": the mean of the patches', and of the text's
            tokens'.
        embedding_width: Of the vectors that are compared; None for the encoder's width (BEiT-3).
        temperature: That similarities are divided by at first; it is learnt (0.07 in CLIP and
            BEiT-3), and stays 0.01 or more, as in CLIP.
    """

    pooling: Literal["first", "mean"] = "first"
    embedding_width: int | None = None
    temperature: float = 0.07

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = []
        if self.embedding_width is not None and self.embedding_width < 1:
            wrong.append(f"embedding_width must be 1 or more, not {self.embedding_width}")
        if not 0.01 <= self.temperature <= 1:
            wrong.append(f"temperature must be in [0.01, 1], not {self.temperature}")
        if wrong:
            raise ConfigError(wrong)
