"""Write our models of vision and language as directories that transformers reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from magneto.hf.image_processor import MODES, MagnetoImageProcessor
from magneto.hf.tokenizer import EncoderInput, encoder_tokenizer
from magneto.hf.vision_language_processor import (
    MagnetoVisionLanguageProcessor,
    MagnetoWholeImageProcessor,
)

# As `frame_text` puts them together: alone, and with the mask that a head reads.
FRAMED = EncoderInput(single="{begin} $A {end}", pair="{begin} $A {end} $B {end}")
MASKED_AT_END = EncoderInput(
    single="{begin} $A {mask} {end}", pair="{begin} $A {end} $B {mask} {end}"
)


def special_tokens(tokenizer: Any) -> dict[str, int | None]:
    """Return what transformers' configuration says of special tokens, but the end's."""
    held = {"bos": tokenizer.begin, "pad": tokenizer.pad, "mask": tokenizer.mask}
    return {f"{name}_token_id": number for name, number in held.items()}


def class_names(labels: Sequence[str]) -> dict[str, Any]:
    """Return what transformers' configuration says of classes with these names."""
    if not labels:
        return {}
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def image_processor(config: Any, normalisation: str) -> MagnetoWholeImageProcessor:
    """Return what reads pictures for a fine-tuned model; of other than 1 or 3 channels, for 3."""
    channels = config.channels if config.channels in MODES else 3
    return MagnetoWholeImageProcessor(config.image_size, channels, normalisation)


def save_processor(
    tokenizer: Any,
    processor: MagnetoImageProcessor,
    length: int,
    directory: Path,
    how: EncoderInput = FRAMED,
) -> None:
    """Write an image processor and a tokenizer, and what joins them.

    Args:
        tokenizer: Of `magneto.data.tokenizer`.
        processor: Of images.
        length: Tokens of a text at most.
        directory: That there is.
        how: Texts are put together.
    """
    tokenizer.save(directory)
    fast = encoder_tokenizer(tokenizer, length, how)
    if fast is None:
        processor.save_pretrained(directory)
        return
    MagnetoVisionLanguageProcessor(processor, fast).save_pretrained(directory)
    # transformers alone would read it, and cut texts otherwise than in training.
    (directory / "tokenizer.model").unlink(missing_ok=True)
