"""Tokenizers, image processor and speech feature extractor for the library transformers.

Inputs are prepared as in training. SentencePiece models are not converted to a tokenizer.json,
because a tokenizer.json would segment some texts differently: texts with two segmentations of equal
score, between which only rounding decides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    FeatureExtractionMixin,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor
from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

from magneto.hf.wrapper import MODULE, SavedWithModule, auto_map
from magneto.speech.batching import pad_features, padded_frames
from magneto.speech.config import FilterBankConfig, SpeechDataConfig
from magneto.speech.features import UTTERANCE_NORMALISERS, FilterBank, Normaliser, SpeechFeatures
from magneto.vision.decoding import PixelPicture, apply_orientation, orientation, to_rgb
from magneto.vision.models import classes_of
from magneto.vision.transforms import CentreCrop, InputFormat, from_image, resize_to_fit
from magneto.vision_language.samples import WholeImage


@dataclass(frozen=True)
class EncoderInput:
    """Templates for inputs of one text (`single`) and of two texts (`pair`).

    "$A" and "$B" are the texts. {begin}, {end} and {mask} are special tokens. The suffix ":1" sets
    the token type to 1. `types` is the model's number of token types.
    """

    single: str
    pair: str
    types: int = 0


def class_names(labels: Sequence[str]) -> dict[str, Any]:
    """Return `id2label` and `label2id` for class names, or {} without names."""
    if not labels:
        return {}
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
    }


MASKED = EncoderInput(single="{begin} $A", pair="{begin} $A {end} $B")
"""Template of masked language models."""
FRAMED = EncoderInput(single="{begin} $A {end}", pair="{begin} $A {end} $B {end}")
"""Template of vision-language models."""
MASKED_AT_END = EncoderInput(
    single="{begin} $A {mask} {end}", pair="{begin} $A {end} $B {mask} {end}"
)
"""Template of vision-language models whose head reads the mask token."""
PLAIN = EncoderInput(single="$A", pair="$A $B")
"""Template of decoders."""
ENDED = EncoderInput(single="$A {end}", pair="$A $B {end}")
"""Template of translation models."""


def transformers_tokenizer(tokenizer: Any, length: int) -> Any:
    """Return a transformers tokenizer that pads on the left, or None for a byte tokenizer."""
    return _tokenizer(tokenizer, length, PLAIN, {"bos": "end", "eos": "end", "pad": "end"}, "left")


def encoder_tokenizer(tokenizer: Any, length: int, template: EncoderInput) -> Any:
    """Return a transformers tokenizer with a template.

    Return None for a byte tokenizer, or if the tokenizer has no start token.
    """
    names = {"bos": "begin", "eos": "end", "pad": "pad", "mask": "mask"}
    return _tokenizer(tokenizer, length, template, names)


def translation_tokenizer(vocabulary: Any, length: int) -> Any:
    """Return a transformers tokenizer for texts like "<2de> text".

    Return None if transformers cannot represent the tokenizer.
    """
    tags = {f"<2{language}>": vocabulary.tag(language) for language in vocabulary.languages}
    made = _tokenizer(vocabulary.tokenizer, length, ENDED, {"eos": "end", "pad": "end"}, tags=tags)
    # If the tokenizer's numbers have gaps, tags would get other numbers than in training.
    fits = made is not None and made.convert_tokens_to_ids(list(tags)) == list(tags.values())
    return made if fits else None


def _tokenizer(
    tokenizer: Any,
    length: int,
    template: EncoderInput,
    names: Mapping[str, str],
    side: str = "right",
    tags: Iterable[str] = (),
) -> Any:
    # `names` maps transformers' special tokens ("bos") to Magneto's ("begin").
    inner: Any = getattr(tokenizer, "inner", None)
    name = getattr(inner, "id_to_piece", getattr(inner, "id_to_token", None))
    if name is None:
        return None
    numbers = {kind: getattr(tokenizer, kind) for kind in ("begin", "end", "pad", "mask")}
    words = {kind: None if n is None else name(n) for kind, n in numbers.items()}
    if words["begin"] is None and "begin" in names.values():
        return None
    single, pair = (each.format(**words) for each in (template.single, template.pair))
    types = ["token_type_ids"] if template.types > 1 else []
    options: dict[str, Any] = {
        "model_max_length": length,
        "padding_side": side,
        # By default transformers adds token_type_ids.
        "model_input_names": ["input_ids", "attention_mask", *types],
        **{f"{theirs}_token": words[ours] for theirs, ours in names.items() if words[ours]},
    }
    if hasattr(inner, "id_to_piece"):
        made = MagnetoSentencePieceTokenizer(str(tokenizer.path), single, pair, **options)
        made.add_tokens(list(tags), special_tokens=True)
        return made
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.processors import TemplateProcessing

    fast = Tokenizer.from_str(inner.to_str())
    fast.add_special_tokens([AddedToken(tag, rstrip=True, special=True) for tag in tags])
    if template is not PLAIN:
        known = {word: numbers[kind] for kind, word in words.items() if word}
        special = [(word, number) for word, number in known.items() if word in single + pair]
        fast.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=special)
    return PreTrainedTokenizerFast(tokenizer_object=fast, **options)


class MagnetoSentencePieceTokenizer(SavedWithModule, SentencePieceBackend):
    """SentencePiece tokenizer with the input template of training.

    If a text contains the name of a special token, the name becomes this token. A space before the
    special token is dropped.
    """

    # transformers would read a tokenizer.model itself, with other results.
    vocab_files_names = {"vocab_file": "sentencepiece.model"}  # noqa: RUF012
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(
        self, vocab_file: str | None, single: str = "$A", pair: str = "$A $B", **kwargs: Any
    ) -> None:
        """Load a SentencePiece model.

        `single` and `pair` are templates as in `EncoderInput`, with names of special tokens (such
        as `<s>`) in place of {begin}, {end} and {mask}.
        """
        if vocab_file is None:
            raise OSError(f"no file {self.vocab_files_names['vocab_file']}")
        self.single, self.pair = single, pair
        kwargs["auto_map"] = {"AutoTokenizer": [f"{MODULE}.{type(self).__name__}", None]}
        super().__init__(vocab_file=vocab_file, single=single, pair=pair, **kwargs)

    def tokenize(self, text: str, **kwargs: Any) -> list[str]:
        names = sorted(self.added_tokens_encoder, key=len, reverse=True)
        plain = not names or kwargs.get("split_special_tokens", self.split_special_tokens)
        parts = [text] if plain else re.split(f" ?({'|'.join(map(re.escape, names))})", text)
        pieces = self.sp_model.encode(parts[0], out_type=str)
        for name, part in zip(parts[1::2], parts[2::2], strict=True):
            # SentencePiece adds a space at the start of a text, but not after a line end.
            inside = self.sp_model.encode("\n" + part, out_type=str)
            pieces += [name, *inside[len(self._line_end) :]]
        return pieces

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        special = self.added_tokens_encoder
        text, run = "", []
        for token in tokens:
            if token in special:
                text += self._text(run, begins=not text) + token
                run = []
            else:
                run.append(self.sp_model.piece_to_id(token))
        return text + self._text(run, begins=not text)

    def _text(self, run: list[int], begins: bool) -> str:
        if begins:
            return self.sp_model.decode(run)
        return self.sp_model.decode(self._line_end + run)[1:]

    @property
    def _line_end(self) -> list[int]:
        return self.sp_model.encode("\n")

    def _fill_template(self, first: list[int], second: list[int] | None) -> list[tuple[int, int]]:
        # Pairs (token, token type). A special token of type t has the type -1 - t.
        made = []
        for word in (self.single if second is None else self.pair).split():
            name, _, kind = word.partition(":")
            if name in ("$A", "$B"):
                tokens = first if name == "$A" else second or []
                made += [(token, int(kind or 0)) for token in tokens]
            else:
                made.append((int(self.convert_tokens_to_ids(name)), -1 - int(kind or 0)))  # type: ignore[arg-type]
        return made

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        return [token for token, _ in self._fill_template(token_ids_0, token_ids_1)]

    def create_token_type_ids_from_sequences(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        kinds = [kind for _, kind in self._fill_template(token_ids_0, token_ids_1)]
        return [kind if kind >= 0 else -1 - kind for kind in kinds]

    def get_special_tokens_mask(
        self,
        token_ids_0: list[int],
        token_ids_1: list[int] | None = None,
        already_has_special_tokens: bool = False,
    ) -> list[int]:
        if already_has_special_tokens:
            return super().get_special_tokens_mask(token_ids_0, token_ids_1, True)
        return [int(kind < 0) for _, kind in self._fill_template(token_ids_0, token_ids_1)]


def pixels_of(picture: Any) -> np.ndarray:
    """Return the RGB pixels of an image, turned upright."""
    from PIL import Image

    if isinstance(picture, str | os.PathLike):
        raise TypeError("images must be PIL images or uint8 arrays. Open "
                        f"{os.fspath(picture)} with PIL.Image.open.")  # fmt: skip
    if not isinstance(picture, Image.Image):
        array = np.asarray(picture)
        if array.dtype != np.uint8:
            raise TypeError(f"images must be PIL images or uint8 arrays, not {array.dtype}")
        picture = Image.fromarray(array)
    return apply_orientation(from_image(to_rgb(picture)), orientation(picture))


def is_several(images: Any) -> bool:
    listed = isinstance(images, Sequence) and not isinstance(images, str)
    return listed or getattr(images, "ndim", 0) == 4


class MagnetoImageProcessor(SavedWithModule, BaseImageProcessor):
    """Image processor with the preprocessing of a run's validation images."""

    model_input_names = ["pixel_values"]  # noqa: RUF012

    def __init__(
        self,
        image_size: int = 224,
        channels: int = 3,
        normalisation: str = "half",
        resize: int | None = None,
        fit: Sequence[int] | None = None,
        **others: Any,
    ) -> None:
        """Configure the preprocessing, with sizes in pixels.

        `channels` is 1 for grey and 3 for RGB. `normalisation` is one of
        `magneto.vision.transforms.NORMALISATIONS`. `resize` is the length of the shorter side
        before the centre crop. If `resize` is None, the whole image is resized to a square.

        For segmentation, `image_size` is 0, and the image keeps the aspect ratio. `fit` has a limit
        for the longer side and a limit for the shorter side. If `fit` is None, the image is not
        resized.
        """
        if channels not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, not {channels}")
        others["auto_map"] = auto_map({"AutoImageProcessor": type(self).__name__})
        super().__init__(**others)
        self.image_size, self.channels, self.normalisation = image_size, channels, normalisation
        self.resize, self.fit = resize, None if fit is None else tuple(fit)

    def preprocess(self, images: Any, return_tensors: str | None = None, **_: Any) -> BatchFeature:  # type: ignore[override]
        """Return `pixel_values` of shape (batch, channels, height, width).

        An image is a PIL image, or a uint8 array (height, width) or (height, width, 3). `images` is
        one image, a sequence of images, or an array (batch, height, width, 3).
        """
        pictures = images if is_several(images) else [images]
        found = [self.values(pixels_of(picture)) for picture in pictures]
        if len({values.shape for values in found}) > 1:
            raise ValueError("images have different sizes. Give one image at a time.")
        return BatchFeature({"pixel_values": np.stack(found)}, tensor_type=return_tensors)

    def values(self, pixels: np.ndarray) -> np.ndarray:
        input_format = InputFormat(self.image_size, self.channels, self.normalisation)
        if not self.image_size:
            return input_format.normalise(resize_to_fit(pixels, self.fit))  # type: ignore[arg-type]
        transform = (
            CentreCrop(input_format, self.resize) if self.resize else WholeImage(input_format)
        )
        return transform(PixelPicture(pixels), np.random.default_rng(0))

    def post_process_semantic_segmentation(
        self, outputs: Any, target_sizes: Sequence[Sequence[int]] | None = None
    ) -> list[Tensor]:
        """Return the class of each pixel, as an int64 tensor (height, width) per image.

        `target_sizes` has the output's (height, width) for each image. The default is the height
        and width of the logits.
        """
        sizes = target_sizes or [outputs.logits.shape[2:]] * len(outputs.logits)
        return [
            classes_of(logits, torch.Size(int(side) for side in size))
            for logits, size in zip(outputs.logits, sizes, strict=True)
        ]


class MagnetoVisionLanguageProcessor(SavedWithModule, ProcessorMixin):
    """Processor of images and texts.

    As in training, a text becomes `<s> words </s>`, or `<s> words <mask> </s>` if the head reads
    the mask token. Texts are truncated to the model's maximum length, and padded to the longest
    text.
    """

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, **others: Any) -> None:
        super().__init__(image_processor, tokenizer, **others)
        self.auto_map = auto_map({"AutoProcessor": type(self).__name__})

    def __call__(  # type: ignore[override]
        self,
        images: Any = None,
        text: str | Sequence[str] | None = None,
        return_tensors: str | None = "pt",
        **_: Any,
    ) -> BatchFeature:
        """Return `pixel_values` of images, and `input_ids` and `attention_mask` of texts.

        For visual reasoning, `images` is a list of lists of images.
        """
        made: dict[str, Any] = {}
        if images is not None:
            groups = images if isinstance(images, Sequence) and is_several(images[0]) else []
            if len({len(group) for group in groups}) > 1:
                raise ValueError("each text must have the same number of images")
            pictures = [one for group in groups for one in group] if groups else images
            pixels = self.image_processor(pictures, return_tensors=return_tensors)["pixel_values"]
            if groups:
                pixels = pixels.reshape(len(groups), -1, *pixels.shape[1:])
            made["pixel_values"] = pixels
        if text is not None:
            texts = [text] if isinstance(text, str) else list(text)
            found = self.tokenizer(
                texts, padding=True, truncation=True, return_tensors=return_tensors
            )
            made |= {name: found[name] for name in ("input_ids", "attention_mask")}
        return BatchFeature(made)

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any
    ) -> list[str]:
        self.image_processor.save_pretrained(save_directory)
        return super().save_pretrained(save_directory, push_to_hub, **kwargs)


def as_sounds(raw_speech: Any) -> list[np.ndarray]:
    listed = isinstance(raw_speech, list | tuple)
    several = np.ndim(raw_speech[0] if listed and len(raw_speech) else 0) > 0
    rows = raw_speech if several else np.atleast_2d(raw_speech)
    recordings = [np.asarray(each) for each in rows]
    stereo = not several and len(rows) > len(rows[0])  # (samples, channels)
    for recording in recordings:
        if recording.ndim != 1 or stereo:
            shape = np.shape(rows if stereo else recording)
            raise ValueError("raw_speech must be mono, with shape (samples,) or (recordings, "
                             f"samples), not {shape}")  # fmt: skip
        if not np.issubdtype(recording.dtype, np.floating):
            raise ValueError(f"samples must be floats in [-1, 1], not {recording.dtype}. Divide "
                             "16-bit samples by 32768.")  # fmt: skip
    return [recording.astype(np.float32) for recording in recordings]


class MagnetoSpeechFeatureExtractor(SavedWithModule, FeatureExtractionMixin):
    """Feature extractor with the normalised log-mel features of training."""

    model_input_names = ["input_features", "attention_mask"]  # noqa: RUF012

    def __init__(
        self,
        sampling_rate: int = 16000,
        filter_bank: dict[str, Any] | None = None,
        cmvn: str = "none",
        mean: Sequence[float] = (),
        deviation: Sequence[float] = (),
        **others: Any,
    ) -> None:
        """Configure the feature extraction. `sampling_rate` is in Hz.

        `filter_bank` has the fields of `FilterBankConfig`. The normalisation `cmvn` is "none",
        "utterance" or "global". `mean` and `deviation` have one value per feature, and are used
        only if `cmvn` is "global".
        """
        others["auto_map"] = auto_map({"AutoFeatureExtractor": type(self).__name__})
        super().__init__(**others)
        self.sampling_rate, self.cmvn = sampling_rate, cmvn
        self.filter_bank = filter_bank or asdict(FilterBankConfig())
        self.mean, self.deviation = list(mean), list(deviation)

    @classmethod
    def of(cls, data: SpeechDataConfig) -> MagnetoSpeechFeatureExtractor:
        """Return the feature extractor of a run's `data` section."""
        normaliser: Any = SpeechFeatures(data).normaliser
        kind, given = data.cmvn, {}
        if kind not in UTTERANCE_NORMALISERS:
            kind = "global"
            given = {"mean": normaliser.mean.tolist(), "deviation": normaliser.deviation.tolist()}
        return cls(data.sample_rate, asdict(data.features), kind, **given)

    def __call__(
        self,
        raw_speech: Any,
        sampling_rate: int | None = None,
        return_tensors: str | None = None,
        **_: Any,
    ) -> BatchFeature:
        """Return `input_features` (batch, frames, mel bins) and `attention_mask`.

        `raw_speech` is a mono recording, a list of recordings, or an array (recordings, samples).
        Samples are floats in [-1, 1]. `sampling_rate` is None or the model's sample rate in Hz.
        """
        if sampling_rate not in (None, self.sampling_rate):
            raise ValueError(f"sampling_rate is {sampling_rate} Hz, but the model needs "
                             f"{self.sampling_rate} Hz. Resample the samples.")  # fmt: skip
        bank, normalise = self._parts()
        found = [normalise(bank(sound)) for sound in as_sounds(raw_speech)]
        features = pad_features(found, self.filter_bank["mel_bins"]).numpy()
        mask = np.zeros(features.shape[:2], np.int64)
        for row, each in enumerate(found):
            mask[row, : padded_frames(len(each))] = 1
        values = {"input_features": features, "attention_mask": mask}
        return BatchFeature(values, tensor_type=return_tensors)

    def _parts(self) -> tuple[FilterBank, Any]:
        bank = FilterBankConfig(**self.filter_bank)
        data = SpeechDataConfig(sample_rate=self.sampling_rate, features=bank, cmvn="none")
        mean, deviation = (np.array(each, np.float32) for each in (self.mean, self.deviation))
        return FilterBank(data), UTTERANCE_NORMALISERS.get(self.cmvn) or Normaliser(mean, deviation)
