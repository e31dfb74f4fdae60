"""What the three streams read: images, packed texts, pairs; and the codes of patches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from magneto.data.counts import Counts
from magneto.data.problems import DataProblems
from magneto.data.tokenizer import NOISE_TOKENIZER, Tokenizer
from magneto.files import user_path
from magneto.language.config import TextDataConfig
from magneto.language.text import prepare_text, split_documents, tokenised
from magneto.progress import Progress
from magneto.vision.batches import evaluation_images
from magneto.vision.config import BUILTIN_TOKENIZER, ImageDataConfig, ImageModelConfig
from magneto.vision.images import ImageSplit, images_of, load_images
from magneto.vision.targets import CodeTargets, PatchTokenizer, load_tokenizer, noise_tokenizer
from magneto.vision.transforms import CentreCrop, Reading
from magneto.vision_language.config import BUILTIN
from magneto.vision_language.modelling.config import MaskedDataConfig, MaskedDataModelConfig
from magneto.vision_language.pairs import PairSplits
from magneto.vision_language.scenes import scene_images, scene_texts

# Batches of images of which builtin:patches is made, and images of each.
SAMPLED_BATCHES, BATCH = 16, 64


@dataclass(frozen=True)
class ClosedTexts:
    """Tokens of texts one after another, each closed by the end token.

    Attributes:
        tokens: (tokens,), of a type that is as small as the vocabulary allows, or mapped from disk.
        end: Number of the end token.
    """

    tokens: np.ndarray
    end: int

    @cached_property
    def ends(self) -> np.ndarray:
        """Places of the end tokens, (texts,)."""
        return np.flatnonzero(self.tokens == self.end)

    def text(self, number: int) -> np.ndarray:
        """Return the tokens of a text, without the end token."""
        start = self.ends[number - 1] + 1 if number else 0
        return self.tokens[start : self.ends[number]]


def close_texts(texts: Iterable[str], tokenizer: Tokenizer) -> ClosedTexts:
    """Tokenise texts that are in memory."""
    kind = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    parts = [part.astype(kind) for part, _ in tokenised(texts, tokenizer)]
    return ClosedTexts(np.concatenate([np.zeros(0, kind), *parts]), tokenizer.end)


def image_splits(
    data: MaskedDataConfig,
    pairs: PairSplits,
    seed: int,
    progress: Progress,
    problems: DataProblems,
) -> tuple[ImageSplit, ImageSplit]:
    """Return the images without a text, to train and to validate on."""
    if data.image_source is None:
        return pairs.train.single_images, pairs.validation.single_images
    if data.image_source == BUILTIN:
        found = scene_images()
        return images_of(found["train"]), images_of(found["validation"])
    config = ImageDataConfig(
        source=data.image_source, validation_source=data.image_validation_source,
        validation_fraction=data.validation_fraction, label_column="",
    )  # fmt: skip
    splits = load_images(config, seed, progress, problems)
    progress.say(f"{data.image_source}: {splits.describe()}")
    return splits.train, splits.validation


def vocabulary_texts(data: MaskedDataConfig, pairs: PairSplits) -> Iterator[str]:
    """Yield the texts to train on, of pairs and alone, from which a tokenizer may be learnt."""
    yield from pairs.train.texts
    if data.text_source == BUILTIN:
        yield from scene_texts()["train"]
    elif data.text_source is not None:
        yield from split_documents(text_config(data, "bytes", 2), "train", Counts())


def text_config(data: MaskedDataConfig, tokenizer: str, length: int) -> TextDataConfig:
    """Return the `data` section by which the texts without an image are read."""
    assert data.text_source is not None
    return TextDataConfig(
        source=data.text_source, validation_source=data.text_validation_source,
        validation_fraction=data.validation_fraction, tokenizer=tokenizer, max_length=length,
    )  # fmt: skip


def text_splits(
    data: MaskedDataConfig,
    paired: tuple[ClosedTexts, ClosedTexts],
    tokenizer: Tokenizer,
    length: int,
    progress: Progress,
) -> tuple[ClosedTexts, ClosedTexts]:
    """Return the texts without an image, to train and to validate on.

    Args:
        data: Which.
        paired: Those of pairs.
        tokenizer: Of the texts.
        length: Tokens of a sequence that is cut from them.
        progress: Told of long work.

    Raises:
        ValueError: If they are too few for a sequence.
    """
    if data.text_source is None:
        found = paired
    elif data.text_source == BUILTIN:
        texts = scene_texts()
        found = (
            close_texts(texts["train"], tokenizer),
            close_texts(texts["validation"], tokenizer),
        )
    else:
        # A file, or the bytes, whose tokenizer has none.
        name = "bytes" if tokenizer.path is None else str(tokenizer.path)
        made = prepare_text(text_config(data, name, length), progress)
        progress.say(f"{data.text_source}: {made.counts.describe()}, "
                     f"{len(made.train.tokens):,} tokens")  # fmt: skip
        found = tuple(ClosedTexts(s.tokens, tokenizer.end) for s in (made.train, made.validation))
    for split, texts in zip(("training", "validation"), found, strict=True):
        if len(texts.tokens) <= length:
            raise ValueError(f"{data.text_source or data.source} has {len(texts.tokens)} {split} "
                             f"tokens, too few for one sequence of {length}: give more text, or "
                             "lower data.text_length")  # fmt: skip
    return found[0], found[1]


def image_shape(config: MaskedDataModelConfig) -> ImageModelConfig:
    """Return what a tokenizer of images has to know of the model: their size and the codes."""
    return ImageModelConfig(
        image_size=config.image_size, patch_size=config.patch_size, channels=config.channels,
        codes=config.codes,
    )  # fmt: skip


def code_targets(
    config: MaskedDataModelConfig,
    data: MaskedDataConfig,
    images: Callable[[], ImageSplit],
    seed: int,
) -> CodeTargets:
    """Return the frozen tokenizer of images, which reads what the model reads.

    Args:
        config: Of the model; `codes` of builtin:patches.
        data: Names the tokenizer.
        images: Gives those to train on, of which builtin:patches is made.
        seed: Of k-means.

    Raises:
        FileNotFoundError: If there is no such run.
        ValueError: If it is a tokenizer of other images, or `codes` is not set.
    """
    shape = image_shape(config)
    if data.image_tokenizer == NOISE_TOKENIZER:
        found = noise_tokenizer(shape, seed)
    elif data.image_tokenizer != BUILTIN_TOKENIZER:
        found = load_tokenizer(user_path(data.image_tokenizer), shape)
    else:
        if config.codes is None:
            raise ValueError(f"set model.codes for data.image_tokenizer {BUILTIN_TOKENIZER}")
        split = images()
        reading = Reading(config.image_size, config.channels, "half", split.peak)
        crop = CentreCrop(reading, data.resize or reading.size)
        batches = islice(evaluation_images(split, crop, BATCH, reading.blank), SAMPLED_BATCHES)
        readable = (batch["images"][~batch["broken"]] for batch in batches)
        found = PatchTokenizer(shape, readable, seed)
    return CodeTargets(found, data.normalisation).requires_grad_(False).eval()
