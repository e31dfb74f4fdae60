"""The `model` section of recipes of visual tokenizers. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from magneto.config import ConfigError
from magneto.vision.config import ImageEncoderConfig

TEACHERS = ("hog", "pixels", "clip:PATH", "dino:PATH")


@dataclass(frozen=True, kw_only=True)
class ImageTokenizerConfig(ImageEncoderConfig):
    """An encoder, a codebook, and a small decoder that a teacher's features are read from.

    Defaults are those of BEiT v2 (arXiv 2208.06366, section 3.1, and its released code).

    Attributes:
        codes: Vectors of the codebook.
        code_width: Width of each.
        decay: Of the codebook's moving averages.
        revive_below: A code whose share of use falls below this multiple of an even share
            (1 / `codes`) is revived: it gets a part of what a much used code stands for. 0 revives
            none, as in the released code.
        k_means_iterations: Of the k-means that the codebook begins with.
        k_means_patches: Patches per code that it sees, at least.
        commitment: Weight of the distance between the encoder's output and its code.
        decoder_depth: Layers of the decoder.
        teacher: What the decoder predicts: "hog", histograms of gradients, or "pixels", both of the
            image itself; "clip:PATH" or "dino:PATH", the features of a model of transformers, a
            folder or a name on the hub.
        target_width: Width of the teacher's features; None asks the teacher.
    """

    codes: int = 8192
    code_width: int = 32
    decay: float = 0.99
    revive_below: float = 0.03
    k_means_iterations: int = 10
    k_means_patches: int = 10
    commitment: float = 1.0
    decoder_depth: int = 3
    teacher: str = "hog"
    target_width: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"codes": 2, "code_width": 1, "decoder_depth": 1, "k_means_patches": 1,
                 "k_means_iterations": 0, "commitment": 0, "revive_below": 0}  # fmt: skip
        wrong = [
            f"{name} must be {low} or more, not {getattr(self, name)}"
            for name, low in least.items()
            if getattr(self, name) < low
        ]
        if not 0 <= self.decay < 1:
            wrong.append(f"decay must be at least 0 and below 1, not {self.decay}")
        if self.revive_below >= 1:
            wrong.append(f"revive_below must be below 1, not {self.revive_below}: codes that are "
                         "used like any other would be revived")  # fmt: skip
        kind, _, path = self.teacher.partition(":")
        if (f"{kind}:PATH" if path else kind) not in TEACHERS:
            wrong.append(f"no teacher {self.teacher!r}: there are {', '.join(TEACHERS)}")
        if wrong:
            raise ConfigError(wrong)
