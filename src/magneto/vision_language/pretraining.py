"""Masked data modelling of images, texts and pairs (BEiT-3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from magneto.data.cache import content_digest
from magneto.data.problems import Counts
from magneto.data.sources import check_two_sources
from magneto.data.stream import (
    EVALUATION_SEED,
    BatchStream,
    LazyBatches,
    evaluation_order,
    join_streams,
)
from magneto.data.tokenizer import Tokenizer
from magneto.functional.cross_entropy import (
    IGNORED,
    count_numbers,
    frequency_sums,
    prediction_sums,
)
from magneto.language.config import MaskedTextDataConfig, TextDataConfig
from magneto.language.text import BATCH, PreparedText, split_documents, tokenize_source
from magneto.training.task import Loss, Scores
from magneto.vision.augmentation import Augmentation
from magneto.vision.batches import (
    Example,
    OnBroken,
    Transform,
    evaluation_images,
    image_stream,
    read_image,
)
from magneto.vision.config import AugmentationConfig, ImageDataConfig
from magneto.vision.images import ImageSplit, ImageSplits, load_images
from magneto.vision.targets import BlockMasking, CodePrediction
from magneto.vision.transforms import CentreCrop, validation_transform
from magneto.vision_language.config import BUILTIN, MaskedDataConfig, MaskedDataModelConfig
from magneto.vision_language.model import MaskedDataModel
from magneto.vision_language.samples import MaskedSamples, concatenated, join_samples
from magneto.vision_language.scenes import IMAGE_SET, scene_pairs, scene_texts
from magneto.vision_language.tables import (
    EVALUATION_BATCH,
    ImageTextTask,
    all_captions,
    each_caption,
    load_captions,
)

if TYPE_CHECKING:
    from magneto.language.masked_lm import Masking

TRAIN, VALIDATION = 0, 1
# Streams of a batch.
PARTS = ("images", "texts", "pairs")
CUT = "pairs with a truncated text"
# Predictions: of images alone, images of pairs, texts of pairs, texts alone.
KINDS = ("image", "paired_image", "paired_text", "text")
# Batches of training images counted for the baseline.
COUNTED_BATCHES = 16


@dataclass(frozen=True)
class ClosedTexts:
    """Concatenated tokens of texts. An end token follows each text.

    `stops` are the indices after the end tokens, int64 (texts,).
    """

    tokens: np.ndarray
    stops: np.ndarray

    def text(self, number: int) -> np.ndarray:
        """Return the tokens of a text and the end token."""
        start = self.stops[number - 1] if number else 0
        return self.tokens[start : self.stops[number]]


def close_texts(texts: list[str], tokenizer: Tokenizer) -> ClosedTexts:
    kind = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    parts, lengths = [np.zeros(0, kind)], list[int]()
    for start in range(0, len(texts), BATCH):
        encoded = tokenizer.encode(texts[start : start + BATCH])
        closed = [[*tokens, tokenizer.end] for tokens in encoded]
        lengths += map(len, closed)
        parts.append(np.fromiter(chain.from_iterable(closed), kind))
    return ClosedTexts(np.concatenate(parts), np.cumsum(lengths, dtype=np.int64))


def mask_words(
    masking: Masking, ratio: float, row: np.ndarray, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Mask a share of the tokens of a text, at least one. Special tokens are never masked."""
    most = max(1, round(ratio * int(masking.maskable[row].sum())))
    chosen = masking.choose(row, draw, most)
    seen, targets = row.copy(), np.full_like(row, IGNORED)
    targets[chosen] = row[chosen]
    seen[chosen] = masking.corrupt(row[chosen], draw)
    return seen, targets


MaskWords = Callable[[np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def image_examples(
    images: ImageSplit, transform: Transform, patches: BlockMasking, blank: np.ndarray | None = None
) -> Example:
    def make(index: int, draw: np.random.Generator) -> dict[str, Any]:
        read = partial(images.read, index, transform, draw)
        broken = partial(images.broken, index)
        image, lost = (read(), False) if blank is None else read_image(read, blank, broken)
        places = np.arange(patches.count) if lost else patches.draw(draw)
        return {"images": image, "patches": places, "blank": np.bool_(lost)}

    return make


def text_examples(tokens: np.ndarray, begin: int, length: int, mask: MaskWords) -> Example:
    def make(index: int, draw: np.random.Generator) -> dict[str, Any]:
        own = tokens[index * (length - 1) : (index + 1) * (length - 1)]
        seen, targets = mask(np.concatenate([[begin], own]).astype(np.int64), draw)
        return {"seen": seen, "targets": targets}

    return make


def pair_examples(
    of_image: Example, texts: ClosedTexts, begin: int, longest: int, mask: MaskWords
) -> Example:
    def make(index: int, draw: np.random.Generator) -> dict[str, Any]:
        example = of_image(index, draw)
        tokens = texts.text(index)
        row = np.concatenate([[begin], tokens[:-1][: longest - 2], tokens[-1:]]).astype(np.int64)
        seen, targets = np.zeros(longest, np.int64), np.full(longest, IGNORED)
        seen[: len(row)], hidden = mask(row, draw)
        if not example["blank"]:
            targets[: len(row)] = hidden
        return {**example, "seen": seen, "targets": targets, "length": len(row)}

    return make


def join_examples(image_tokens: int, pieces: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
    images, texts, pairs = (pieces[name] for name in PARTS)
    lengths = pairs["length"].tolist()
    paired = [
        [row[:length] for row, length in zip(pairs[key].numpy(), lengths, strict=True)]
        for key in ("seen", "targets")
    ]
    alone = [list(texts[key].numpy()) for key in ("seen", "targets")]
    targets = concatenated([*paired[1], *alone[1]])
    words = np.flatnonzero(targets != IGNORED)
    blank = torch.cat([images["blank"], pairs["blank"]])
    patches = torch.cat([images["patches"], pairs["patches"]])
    hidden = torch.zeros(len(blank), image_tokens - 1, dtype=torch.bool).scatter(1, patches, True)
    places = patches + torch.arange(len(blank))[:, None] * (image_tokens - 1)
    first = len(images["blank"])
    masked = MaskedSamples(
        samples=join_samples(image_tokens, first, paired[0], alone[0]),
        hidden=hidden,
        patches=places[~blank].flatten(),
        words=torch.from_numpy(words),
        alone_patches=int((~blank[:first]).sum()) * patches.shape[1],
        paired_words=int((words < sum(lengths)).sum()),
    )
    together = torch.cat([images["images"], pairs["images"]])
    return {"images": together, "masked": masked, "words": torch.from_numpy(targets[words]),
            "blank": blank}  # fmt: skip


def fixed_examples(make: Example, numbers: np.ndarray, which: int) -> dict[str, Tensor]:
    rows = [
        make(number, np.random.default_rng([EVALUATION_SEED, which, number]))
        for number in (numbers.tolist() or [0])
    ]
    return {name: value[: len(numbers)] for name, value in default_collate(rows).items()}


class MaskedDataModelling(CodePrediction, ImageTextTask):
    """Masked data modelling with a `MaskedDataModel`.

    The targets of masked patches are codes, which a frozen image tokenizer computes from the
    unmasked images. Losses are in nats per masked patch or masked text token.
    """

    unit = "tokens"

    model_config: MaskedDataModelConfig
    data_config: MaskedDataConfig

    def __init__(self, model: Any, data: Any, seed: int) -> None:
        super().__init__(model, data, seed)
        self.text_length = self._length("text_length")
        self.paired_text_length = self._length("paired_text_length")

    def _length(self, name: str) -> int:
        most, wanted = self.model_config.max_length, getattr(self.data_config, name)
        if wanted is not None and wanted > most:
            raise ValueError(f"data.{name} ({wanted}) is above model.max_length ({most})")
        return wanted or most

    @cached_property
    def splits(self) -> ImageSplits:
        return load_captions(self.data_config, self.problems, self._progress)

    @cached_property
    def pairs(self) -> tuple[ImageSplit, ImageSplit]:
        return each_caption(self.splits.train), each_caption(self.splits.validation)

    @cached_property
    def images(self) -> tuple[ImageSplit, ImageSplit]:
        data = self.data_config
        if data.image_source is None:
            return self.splits.train, self.splits.validation
        if data.image_source == BUILTIN:
            train, validation = map(ImageSplit, scene_pairs(IMAGE_SET).values())
            return train, validation
        config = ImageDataConfig(
            source=data.image_source, validation_source=data.image_validation_source,
            validation_fraction=data.validation_fraction, label_column="",
        )  # fmt: skip
        splits = load_images(config, self.seed, self._progress, self.problems)
        self._progress.say(f"{data.image_source}: {splits.describe()}")
        return splits.train, splits.validation

    def training_texts(self) -> Iterator[str]:
        yield from all_captions(self.splits.train)
        if self.data_config.text_source == BUILTIN:
            yield from scene_texts()["train"]
        elif self.data_config.text_source is not None:
            yield from split_documents(self._text_config("bytes"), "train", Counts())

    def _text_config(self, tokenizer: str) -> TextDataConfig:
        data = self.data_config
        assert data.text_source is not None
        return TextDataConfig(
            source=data.text_source, validation_source=data.text_validation_source,
            validation_fraction=data.validation_fraction, tokenizer=tokenizer,
        )  # fmt: skip

    @cached_property
    def paired_texts(self) -> tuple[ClosedTexts, ClosedTexts]:
        rows = (self.splits.train, self.splits.validation)
        train, validation = (close_texts(all_captions(part), self.tokenizer) for part in rows)
        return train, validation

    @cached_property
    def corpus(self) -> PreparedText | None:
        """Texts of `text_source`; None if `text_source` is null or "builtin:shapes"."""
        source, path = self.data_config.text_source, self.tokenizer.path
        if source in (None, BUILTIN):
            return None
        name = "bytes" if path is None else str(path)  # a byte tokenizer has no file
        made = tokenize_source(self._text_config(name), self._progress)
        self._progress.say(f"{source}: {made.counts.describe()}, {len(made.train):,} tokens")
        return made

    @cached_property
    def texts(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of training and validation texts without an image."""
        data, length, more = self.data_config, self.text_length, "give more text"
        if self.corpus is not None:
            train, validation = self.corpus.train, self.corpus.validation
            more += " or set data.text_validation_source"
        elif data.text_source == BUILTIN:
            train, validation = (
                close_texts(texts, self.tokenizer).tokens for texts in scene_texts().values()
            )
        else:
            train, validation = (texts.tokens for texts in self.paired_texts)
        for split, tokens in (("training", train), ("validation", validation)):
            if len(tokens) <= length:
                raise ValueError(f"{data.text_source or data.source} has {len(tokens)} {split} "
                                 f"tokens, too few for one sequence of {length}: {more}, or lower "
                                 "data.text_length")  # fmt: skip
        return train, validation

    @cached_property
    def patches(self) -> BlockMasking:
        grid = self.model_config.grid
        return BlockMasking(grid.rows, grid.columns, self.data_config.image_mask_ratio)

    @cached_property
    def masking(self) -> Masking:
        from magneto.language.masked_lm import Masking

        data = self.data_config
        config = MaskedTextDataConfig(
            tokenizer=data.tokenizer, masking=data.masking, corruption=data.corruption,
            max_length=self.model_config.max_length,
        )  # fmt: skip
        return Masking(config, self.tokenizer)

    def plain_batches(self) -> LazyBatches:
        images, blank = self.images[TRAIN], self.input_format_of().blank
        return evaluation_images(images, self.crop(images, "half"), blank, EVALUATION_BATCH)

    def crop(self, split: ImageSplit, normalisation: str | None = None) -> CentreCrop:
        return validation_transform(
            self.data_config, self.input_format_of(split.peak, normalisation)
        )

    def describe(self) -> str:
        self.masking  # noqa: B018  raises before long work if the tokenizer has no mask token
        lengths = np.diff(self.paired_texts[TRAIN].stops, prepend=0)
        counts = Counts(self.splits.counts)
        counts[CUT] = int((lengths > self.paired_text_length - 1).sum())
        train, validation = self.pairs
        pairs = counts.describe_amounts(
            {"training pairs": len(train), "validation pairs": len(validation)}
        )
        return (f"{pairs}; single images: {len(self.images[TRAIN]):,}; "
                f"tokens of single texts: {len(self.texts[TRAIN]):,}")  # fmt: skip

    def build_model(self) -> MaskedDataModel:
        config = self.sized_config()
        return MaskedDataModel(replace(config, codes=config.codes or self.codes()))

    def word_masking(self, name: str) -> MaskWords:
        config = self.data_config
        alone = name == "texts"
        ratio = config.text_mask_ratio if alone else config.paired_text_mask_ratio
        return partial(mask_words, self.masking, ratio)

    def examples(
        self, split: int, augmented: Mapping[str, AugmentationConfig] | None = None
    ) -> dict[str, tuple[int, Example, OnBroken]]:
        """Return a tuple for each of the streams "images", "texts" and "pairs".

        The tuple contains the number of examples, a function that makes an example, and a callback
        that records a broken image. `augmented` maps "images" and "pairs" to augmentations. If
        `augmented` is None, images are cropped in the centre, and a blank image replaces a broken
        image.
        """
        begin, texts, length = self.tokenizer.begin, self.texts[split], self.text_length
        splits = {"images": self.images[split], "pairs": self.pairs[split]}
        seen = {}
        for name, images in splits.items():
            form = self.input_format_of(images.peak)
            transform = Augmentation(form, augmented[name]) if augmented else self.crop(images)
            blank = None if augmented else form.blank
            seen[name] = image_examples(images, transform, self.patches, blank)
        of_text = text_examples(texts, begin, length, self.word_masking("texts"))
        of_pair = pair_examples(
            seen["pairs"], self.paired_texts[split], begin, self.paired_text_length,
            self.word_masking("pairs"),
        )  # fmt: skip
        return {
            "images": (len(splits["images"]), seen["images"], splits["images"].broken),
            "texts": (len(texts) // (length - 1), of_text, lambda index, error: None),
            "pairs": (len(splits["pairs"]), of_pair, splits["pairs"].broken),
        }

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        config = self.data_config
        if self.corpus is not None:
            check_two_sources(self._text_config("bytes"))
        sizes = config.stream_sizes(batch_size)
        augmented = {"images": config.image_augmentation, "pairs": config.augmentation}
        made = self.examples(TRAIN, augmented)
        streams = {
            name: image_stream(
                count, example, sizes[place], len(PARTS) * seed + place, broken=broken
            )
            for place, (name, (count, example, broken)) in enumerate(made.items())
        }
        return join_streams(streams, partial(join_examples, self.model_config.image_tokens))

    def fixed_batches(self, split: int) -> LazyBatches:
        made = self.examples(split)
        counts = [count for count, _, _ in made.values()]
        number = -(-max(counts) // EVALUATION_BATCH)
        orders = [np.array_split(evaluation_order(count), number) for count in counts]

        def make(plan: tuple[np.ndarray, ...]) -> dict[str, Any]:
            pieces = {
                name: fixed_examples(made[name][1], numbers, which)
                for which, (name, numbers) in enumerate(zip(PARTS, plan, strict=True))
            }
            return join_examples(self.model_config.image_tokens, pieces)

        return LazyBatches(list(zip(*orders, strict=True)), make)

    def dummy_batch(self, examples: int) -> dict[str, Any]:
        shares = self.data_config.batch_shares
        lengths = {"texts": self.text_length, "pairs": self.paired_text_length}
        word = int(np.flatnonzero(self.masking.maskable)[0])
        pieces: dict[str, dict[str, Tensor]] = {}
        for name, share in zip(PARTS, shares, strict=True):
            piece: dict[str, Any] = {}
            if name != "texts":
                piece = {"images": self.input_format_of().blank, "blank": np.False_,
                         "patches": np.arange(self.patches.count)}  # fmt: skip
            if name in lengths:
                row = np.full(lengths[name], word)
                seen, targets = self.word_masking(name)(row, np.random.default_rng(0))
                piece |= {"seen": seen, "targets": targets, "length": len(row)}
            pieces[name] = default_collate([piece] * max(1, round(examples * share / sum(shares))))
        return join_examples(self.model_config.image_tokens, pieces)

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Loss:
        images, masked = batch["images"], batch["masked"]
        codes = hidden_codes(self.targets, images, masked.patches)
        patches, words = model(images, masked, codes, batch["words"])
        # Tokens of images, including class tokens, and of texts.
        units = len(images) * self.model_config.image_tokens + len(masked.samples.token_ids)
        return Loss(patches.total + words.total, patches.count + words.count, units=units)

    def validation_batches(self) -> Sequence[dict[str, Any]]:
        return self.fixed_batches(VALIDATION)

    def score(self, model: nn.Module, batch: dict[str, Any]) -> Scores:
        masked = batch["masked"]
        patches, words = model(batch["images"], masked)
        guesses = by_kind(patches, words, masked)
        codes = hidden_codes(self.targets, batch["images"], masked.patches)
        sums = {"unreadable": batch["blank"].sum()}
        for kind, answers in by_kind(codes, batch["words"], masked).items():
            found = prediction_sums(guesses[kind], answers)
            sums |= {f"{kind}_{name}": value for name, value in found.items()}
        return Scores(sums)

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        total = sum(sums[f"{kind}_loss"] for kind in KINDS)
        found = {"loss": total / max(sum(sums[f"{kind}_count"] for kind in KINDS), 1)}
        for kind in KINDS:
            if count := sums[f"{kind}_count"]:
                found[f"{kind}_loss"] = sums[f"{kind}_loss"] / count
                found[f"{kind}_accuracy"] = sums[f"{kind}_right"] / count
        return {**found, "unreadable_images": float(sums.get("unreadable", 0))}

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        self.prepare()
        device, words = self.targets.scale.device, self.sized_config().vocab_size
        size = {kind: self.codes() if "image" in kind else words for kind in KINDS}
        train = islice(self.fixed_batches(TRAIN), COUNTED_BATCHES)
        held = islice(self.validation_batches(), limit)
        # Codes are on the tokenizer's device, counts on the CPU.
        known, asked = ({kind: np.zeros(size[kind], np.int64) for kind in KINDS} for _ in range(2))
        for counts, batches in ((known, train), (asked, held)):
            for batch in batches:
                masked = batch["masked"]
                images, where = batch["images"].to(device), masked.patches.to(device)
                codes = hidden_codes(self.targets, images, where).cpu()
                for kind, found in by_kind(codes, batch["words"], masked).items():
                    counts[kind] += count_numbers(found.numpy(), size[kind])
        allowed = np.zeros(words, bool)
        allowed[: len(self.masking.maskable)] = self.masking.maskable
        paired = self.paired_texts[TRAIN].tokens
        for kind, tokens in (("text", self.texts[TRAIN]), ("paired_text", paired)):
            known[kind] = count_numbers(tokens, len(allowed)) * allowed
        sums: dict[str, float] = {}
        for kind in KINDS:
            may = None if "image" in kind else allowed
            found = frequency_sums(known[kind], asked[kind], may)
            sums |= {f"{kind}_{name}": value for name, value in found.items()}
        return self.summarise(sums, ())

    def digests(self) -> list[str]:
        images = [split.digest for split in self.images]
        captions = content_digest(*(texts.tokens for texts in self.paired_texts))
        corpus = [] if self.corpus is None else [self.corpus.digest]
        return [*super().digests(), *images, captions, *corpus]


def by_kind(patches: Tensor, words: Tensor, masked: MaskedSamples) -> dict[str, Tensor]:
    first, second = masked.alone_patches, masked.paired_words
    parts = (patches[:first], patches[first:], words[:second], words[second:])
    return dict(zip(KINDS, parts, strict=True))


def hidden_codes(targets: nn.Module, images: Tensor, patches: Tensor) -> Tensor:
    return targets(images).flatten().index_select(0, patches) if len(images) else patches
