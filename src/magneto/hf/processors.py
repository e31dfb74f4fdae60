"""Image processor, processor of images with texts, and speech feature extractor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import FeatureExtractionMixin, ProcessorMixin
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

from magneto.hf.configuration import SavedWithModule, auto_map
from magneto.speech.batching import pad_features, padded_frames
from magneto.speech.config import FilterBankConfig, SpeechDataConfig
from magneto.speech.features import UTTERANCE_NORMALISERS, FilterBank, Normaliser, SpeechFeatures
from magneto.vision.decoding import PixelPicture, apply_orientation, orientation, to_rgb
from magneto.vision.models import classes_of
from magneto.vision.transforms import CentreCrop, InputFormat, from_image, resize_to_fit
from magneto.vision_language.samples import WholeImage


def pixels_of(picture: Any) -> np.ndarray:
    """Return an image's upright RGB pixels, as `magneto.vision.decoding` would decode them."""
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
    """Whether `images` is a four-dimensional array, or a sequence other than a file name."""
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
        """Configure the preprocessing.

        Args:
            image_size: Height and width in pixels; 0 keeps the aspect ratio, for segmentation.
            channels: 1 for grey, 3 for RGB.
            normalisation: One of `magneto.vision.transforms.NORMALISATIONS`.
            resize: Shorter side before the centre crop; None resizes the whole image to a square.
            fit: Maximum longer and shorter side in pixels, if the aspect ratio is kept; None keeps
                the image's size.
            **others: Arguments of the transformers base class.
        """
        if channels not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, not {channels}")
        others["auto_map"] = auto_map({"AutoImageProcessor": type(self).__name__})
        super().__init__(**others)
        self.image_size, self.channels, self.normalisation = image_size, channels, normalisation
        self.resize, self.fit = resize, None if fit is None else tuple(fit)

    def preprocess(self, images: Any, return_tensors: str | None = None, **_: Any) -> BatchFeature:  # type: ignore[override]
        """Return `pixel_values` of shape (batch, channels, height, width).

        Args:
            images: A PIL image, a uint8 array (height, width) or (height, width, 3), a sequence of
                such images, or an array (batch, height, width, 3).
            return_tensors: "pt" or "np".

        Raises:
            TypeError: If an image is neither a PIL image nor a uint8 array.
            ValueError: If the processed images have different sizes.
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
        """Return the class of each pixel, an int64 tensor (height, width) for each image.

        Logits are resized to `target_sizes`. Without `target_sizes`, logits keep their size.
        """
        sizes = target_sizes or [outputs.logits.shape[2:]] * len(outputs.logits)
        return [
            classes_of(logits, torch.Size(int(side) for side in size))
            for logits, size in zip(outputs.logits, sizes, strict=True)
        ]


class MagnetoVisionLanguageProcessor(SavedWithModule, ProcessorMixin):
    """Processor of images and texts.

    Texts have the same form as in training, `<s> words </s>`. Texts are truncated to the model's
    maximum length and padded to the longest text.
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

        Args:
            images: An image, a list or an array of images, or a list of lists of images (for visual
                reasoning).
            text: A text or a list of texts.
            return_tensors: "pt" or "np".
        """
        made: dict[str, Any] = {}
        if images is not None:
            groups = images if isinstance(images, Sequence) and is_several(images[0]) else []
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
    """Return the samples of one or several recordings, each a float32 array (samples,)."""
    listed = isinstance(raw_speech, list | tuple)
    several = np.ndim(raw_speech[0] if listed and len(raw_speech) else 0) > 0
    rows = raw_speech if several else np.atleast_2d(raw_speech)
    recordings = [np.asarray(each) for each in rows]
    stereo = not several and len(rows) > len(rows[0])  # (samples, channels)
    for recording in recordings:
        if recording.ndim != 1 or stereo:
            raise ValueError("raw_speech must be mono, (samples,) or (recordings, samples), not of "
                             f"shape {np.shape(rows if stereo else recording)}")  # fmt: skip
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
        """Configure the features.

        Args:
            sampling_rate: Sample rate in Hz.
            filter_bank: Fields of a `FilterBankConfig`.
            cmvn: Normalisation: "global" (by `mean` and `deviation`), "utterance" or "none".
            mean: Mean of each feature over the training set.
            deviation: Standard deviation of each feature over the training set.
            **others: Arguments of the transformers base class.
        """
        others["auto_map"] = auto_map({"AutoFeatureExtractor": type(self).__name__})
        super().__init__(**others)
        self.sampling_rate, self.cmvn = sampling_rate, cmvn
        self.filter_bank = filter_bank or asdict(FilterBankConfig())
        self.mean, self.deviation = list(mean), list(deviation)

    @classmethod
    def of(cls, data: SpeechDataConfig) -> MagnetoSpeechFeatureExtractor:
        """Return the extractor of a run's data configuration, with the run's normaliser."""
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

        Args:
            raw_speech: Mono samples in [-1, 1], a list of such arrays, or an array (recordings,
                samples).
            sampling_rate: Sample rate of the samples in Hz, which is checked if given.
            return_tensors: "pt" or "np".

        Raises:
            ValueError: If `sampling_rate` is not the model's, or the samples are integers or not
                mono.
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
