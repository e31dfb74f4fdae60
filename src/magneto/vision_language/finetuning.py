"""Base classes of vision-language fine-tuning: pre-trained encoders, pairs and captions.

A pre-trained run may also be a folder that `magneto export` or `magneto convert` wrote.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from magneto.data.problems import join_words
from magneto.data.sources import parse_source
from magneto.data.stream import LazyBatches
from magneto.data.table import evenly_spaced
from magneto.data.tokenizer import load_tokenizer
from magneto.files import read_object
from magneto.language.text import LENGTH_SAMPLE, derive_length
from magneto.nn.config import MultiwayConfig
from magneto.runs import open_run, pretrained_run, resolved_recipe, run_tokenizer, warn_unlearnt
from magneto.training.task import Loss, Scores
from magneto.vision.batches import Finish, Transform, evaluation_images
from magneto.vision.config import AugmentationConfig
from magneto.vision.decoding import Picture
from magneto.vision.image_task import Prediction, ranked
from magneto.vision.images import ImageSplit, ImageSplits
from magneto.vision_language.config import FineTunedConfig, VisionLanguageConfig
from magneto.vision_language.model import (
    IMAGE_POSITIONS,
    TEXT_POSITIONS,
    interpolate_positions,
)
from magneto.vision_language.samples import WholeImage, frame_text, join_samples
from magneto.vision_language.tables import (
    EVALUATION_BATCH,
    ImageTextTask,
    all_captions,
    each_caption,
    load_captions,
)
from magneto.weights import StoredTensor, find_weights, open_tensors, open_weights

PREFIX = "encoder."
# Files of a folder that `magneto export` or `magneto convert` wrote.
CONFIG, PICTURES = "config.json", "preprocessor_config.json"
# Prefix of all tensors of an export, and of the first tensors of an encoder without a head.
CORE = "core."
EMBEDDING = "vision_embedding."
HINT = "give a run of the task vision-language-modelling, or a run that started from such a run"
# Largest number of tensors in a message.
LISTED = 8
# Fields in which model and pre-trained run must agree: they decide what the weights compute.
SHARED_FIELDS = frozenset(
    [*(field.name for field in fields(MultiwayConfig)), "patch_size", "channels", "embedding_scale"]
) - {"max_length"}
NO_ANSWER = -1
"""Answer index for unreadable images; it always counts as wrong."""


def pretrained_inputs(config: FineTunedConfig) -> tuple[str, str]:
    run = pretrained_run(config)
    if not is_exported(run):
        held_config(run)
        return run_tokenizer(run), open_run(run).data.normalisation
    try:
        load_tokenizer(run)
        pictures = read_object(run / PICTURES, "normalisation")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{run} has no tokenizer or no {PICTURES}: export the model "
                                "again, or convert the weights again with --tokenizer "
                                "beit3.spm") from error  # fmt: skip
    return str(run), str(pictures["normalisation"])


def load_pretrained(
    model: nn.Module, config: FineTunedConfig
) -> tuple[dict[str, StoredTensor | Tensor], str]:
    """Return the encoder weights of the pre-trained run, and a summary of what was loaded.

    The names and shapes match `model.state_dict()`. `model` must have its encoder in the attribute
    `encoder`. `model` may be on the "meta" device. Only the position tables are loaded into memory.

    Raises:
        ValueError: If the run has no encoder, or if the shapes of the run's encoder differ from the
            shapes of the model's encoder.
    """
    run = pretrained_run(config)
    held = held_config(run)
    stored = exported_tensors(run) if is_exported(run) else open_weights(find_weights(run))
    expected = model.state_dict()
    state: dict[str, StoredTensor | Tensor] = {
        name: stored[name] for name in expected if name.startswith(PREFIX) and name in stored
    }
    if not state:  # such as the weights of an adapter
        raise ValueError(f"{run} has no tensors {PREFIX}*: {HINT}")
    tables = {name: stored[name].read() for name in state
              if name.endswith((IMAGE_POSITIONS, TEXT_POSITIONS))}  # fmt: skip
    state |= interpolate_positions(tables, held, config)
    for name, tensor in state.items():
        if tensor.shape != expected[name].shape:
            raise ValueError(f"{run} has a different encoder: the shape of {name} is "
                             f"{tuple(tensor.shape)} in the run and "
                             f"{tuple(expected[name].shape)} in the model")  # fmt: skip
    initialised = join_words([name for name in expected if name not in state], LISTED)
    left = join_words(sorted(stored.keys() - state.keys()), LISTED)
    message = (f"{run}: {len(state)} tensors loaded; initialised randomly: "
               f"{initialised or 'none'}; unused: {left or 'none'}")  # fmt: skip
    return state, message


def is_exported(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and not (folder / "recipe.yaml").is_file()


def held_config(run: Path) -> Any:
    if not is_exported(run):
        held = resolved_recipe(run, {}).model
        if not isinstance(held, VisionLanguageConfig):
            raise ValueError(f"{run} is not a vision-language run: {HINT}")
        return held
    core: Any = read_object(run / CONFIG).get("core")
    names = {field.name for field in fields(VisionLanguageConfig)}
    if not isinstance(core, dict) or not {"experts", "image_size"} <= core.keys():
        raise ValueError(f"{run} is not a vision-language model: {HINT}")
    return VisionLanguageConfig(**{name: core[name] for name in names & core.keys()})


def exported_tensors(folder: Path) -> dict[str, StoredTensor]:
    found = {name.removeprefix(CORE): t for name, t in open_tensors(folder).items()}
    bare = any(name.startswith(EMBEDDING) for name in found)
    return {f"{PREFIX}{name}": t for name, t in found.items()} if bare else found


class FineTunedTask(ImageTextTask):
    """Base of tasks whose model can be initialised from the encoder of another run.

    The model's configuration must be a `FineTunedConfig`. `images_together` is the number of images
    of each text.
    """

    higher_is_better = True
    images_together: ClassVar[int] = 1
    encoder_fields = SHARED_FIELDS

    @property
    def tokenizer_name(self) -> str:
        name, begun = self.data_config.tokenizer, self.model_config.pretrained
        if name == "auto":
            return pretrained_inputs(self.model_config)[0] if begun else "bpe"
        return name

    def shared_input(self) -> tuple[Path, Any] | None:
        if not self.model_config.pretrained:
            return None
        run = pretrained_run(self.model_config)
        return run, held_config(run)

    def pretrained_normalisation(self, run: Path) -> str:
        return pretrained_inputs(self.model_config)[1]

    def check(self) -> None:
        super().check()
        if self.model_config.max_length is None:
            self.model_config = replace(self.model_config, max_length=self._derived_length())
        if self.model_config.pretrained:
            self._progress.say(self._pretrained()[1])
            warn_unlearnt(pretrained_run(self.model_config), self._progress)

    def _derived_length(self) -> int:
        run, texts = self.shared_input(), list(self.training_texts())
        most = run[1].max_length if run else self.model_config.longest_text
        sample = [texts[number] for number in evenly_spaced(len(texts), LENGTH_SAMPLE)]
        special = 2 + len(self.suffix)
        lengths = [len(tokens) + special for tokens in self.tokenizer.encode(sample)]
        return derive_length(lengths, most, self._progress)

    def _pretrained(self) -> tuple[dict[str, StoredTensor | Tensor], str]:
        with torch.device("meta"):
            model = self.build_model()
        return load_pretrained(model, self.model_config)

    def initial_weights(self) -> dict[str, StoredTensor | Tensor]:
        return self._pretrained()[0] if self.model_config.pretrained else {}

    @cached_property
    def train_tokens(self) -> Any:
        return self.tokenise("training", self.splits.train)

    @cached_property
    def validation_tokens(self) -> Any:
        return self.tokenise("validation", self.splits.validation)

    @abstractmethod
    def tokenise(self, split: str, rows: ImageSplit) -> Any:
        """Return the tokens of each row's text or texts."""

    def transform(self, augmentation: AugmentationConfig) -> Transform:
        return WholeImage(self.input_format, augmentation)

    @cached_property
    def augmentation(self) -> Transform:
        return self.transform(self.data_config.augmentation)

    def example(self, index: int, random: np.random.Generator) -> dict[str, Any]:
        return {"images": self.training_rows.read(index, self.augmentation, random), "rows": index}

    def validation_batches(self) -> LazyBatches:
        def finish(batch: dict[str, Tensor], rows: np.ndarray) -> dict[str, Any]:
            return self.validation_batch({**batch, "rows": torch.from_numpy(rows)})

        held, transform = self.splits.validation, self.transform(AugmentationConfig())
        return evaluation_images(held, transform, self.input_format.blank, EVALUATION_BATCH, finish)

    def validation_rows(self, limit: int | None = None) -> np.ndarray:
        """Return the indices of the rows in the first `limit` validation batches (None for all)."""
        return np.concatenate([*islice(self.validation_batches().plans, limit)])

    @abstractmethod
    def validation_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add texts and targets to a validation batch, which has "images", "rows" and "broken"."""

    @cached_property
    def suffix(self) -> list[int]:
        """Tokens after the words and before `</s>`: one mask token, or []."""
        if not self.model_config.ends_in_mask:
            return []
        if self.tokenizer.mask is None:
            raise ValueError("model.pooling is 'mask_token', but the tokenizer has no mask token. "
                             "Set another data.tokenizer or model.pooling.")  # fmt: skip
        return [self.tokenizer.mask]

    @property
    def max_text_tokens(self) -> int:
        return self.model_config.max_length - 2 - len(self.suffix)

    def framed(self, split: str, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the tokens of each text from `<s>` to `</s>`, with `suffix` before `</s>`.

        Long texts are truncated. A message says how many texts of the split were truncated.
        """
        different, longest = list(dict.fromkeys(texts)), self.model_config.max_length
        encoded = dict(zip(different, self.tokenizer.encode(different), strict=True))
        known = {text: frame_text(tokens, self.tokenizer, longest, self.suffix)
                 for text, tokens in encoded.items()}  # fmt: skip
        if cut := sum(len(encoded[text]) > self.max_text_tokens for text in texts):
            self._progress.say(
                f"{split}: {cut:,} {self.words} truncated to model.max_length ({longest})"
            )
        return [known[text] for text in texts]

    def read_pictures(self, pictures: Sequence[Picture]) -> Tensor:
        transform, random = WholeImage(self.input_format_of()), np.random.default_rng(0)
        return torch.from_numpy(np.stack([transform(each, random) for each in pictures]))

    def longest_texts(self, count: int) -> list[np.ndarray]:
        return [np.zeros(self.model_config.max_length, np.int64)] * count

    def save_assets(self, directory: Path) -> dict[str, Any]:
        length = self.model_config.max_length
        found = super().save_assets(directory)
        return {**found, "model.max_length": length, "model.pretrained": None}


class PairTask(FineTunedTask):
    """Base of tasks whose model reads a text with images and chooses a label.

    `column` is the column of the text. If `data.input` equals `column`, the model reads no images.
    The method `credits` computes the metric that the attribute `credit` names.
    """

    primary_metric = "accuracy"
    column: ClassVar[str]
    credit: ClassVar[str]

    def training_texts(self) -> Iterable[str]:
        return self.splits.train.values(self.column)

    @property
    def reads_images(self) -> bool:
        return self.data_config.input != self.column

    @property
    def reads_texts(self) -> bool:
        return self.data_config.input in ("both", self.column)

    def transform(self, augmentation: AugmentationConfig) -> Transform:
        if self.reads_images:
            return super().transform(augmentation)
        blank = self.input_format.blank
        return lambda picture, random: blank

    def tokenise(self, split: str, rows: ImageSplit) -> list[np.ndarray]:
        return self.framed(
            split, rows.values(self.column) if self.reads_texts else [""] * len(rows)
        )

    @abstractmethod
    def targets(self, validation: bool, rows: np.ndarray) -> Tensor:
        """Return the targets of rows of the training or validation split."""

    @abstractmethod
    def blank_targets(self, count: int) -> Tensor:
        """Return `count` targets for `dummy_batch`."""

    @abstractmethod
    def nats(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss in nats, summed over the rows."""

    @abstractmethod
    def credits(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the score of the most probable label of each row, (rows,)."""

    def finish(self, seed: int) -> Finish:
        tokens = self.train_tokens

        def add_texts(batch: dict[str, Any], rows: np.ndarray, _: np.ndarray) -> dict[str, Any]:
            rows = batch["rows"].numpy()
            return self._beside(batch, [tokens[row] for row in rows], self.targets(False, rows))

        return add_texts

    def validation_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        rows = batch["rows"].numpy()
        texts = [self.validation_tokens[row] for row in rows]
        return self._beside(batch, texts, self.targets(True, rows))

    def _beside(
        self, batch: dict[str, Any], texts: Sequence[np.ndarray], targets: Tensor
    ) -> dict[str, Any]:
        """Add "targets" and "samples" to a batch. Each sample is an image with its text.

        "images" are (rows * images_together, channels, height, width). If a row has two images, the
        left image comes first.
        """
        paired = [text for text in texts for _ in range(self.images_together)]
        return {
            **batch,
            "images": batch["images"].flatten(0, -4),
            "samples": join_samples(self.model_config.image_tokens, paired=paired),
            "targets": targets,
        }

    def dummy_batch(self, examples: int) -> dict[str, Any]:
        batch = {
            **super().dummy_batch(examples),
            "images": self.black_images(examples * self.images_together),
            "rows": torch.zeros(examples, dtype=torch.long),
        }
        return self._beside(batch, self.longest_texts(examples), self.blank_targets(examples))

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Loss:
        """Return the loss, and log the metrics `self.credit` and "broken".

        A row with an unreadable image is replaced by another row. The logged "broken" is the share
        of replaced rows.
        """
        logits, targets = model(batch["images"], batch["samples"]).float(), batch["targets"]
        logs = {self.credit: self.credits(logits.detach(), targets).sum(),
                "broken": batch["broken"].sum()}  # fmt: skip
        count = torch.ones_like(batch["rows"]).sum()
        return Loss(self.nats(logits, targets), count, logs, units=len(targets))

    def score(self, model: nn.Module, batch: dict[str, Any]) -> Scores:
        logits, targets = model(batch["images"], batch["samples"]).float(), batch["targets"]
        broken = batch["broken"]
        sums = {
            "loss": self.nats(logits, targets),
            self.credit: self.credits(logits, targets).masked_fill(broken, 0).sum(),
            "broken": broken.sum(),
            "count": torch.ones_like(batch["rows"]).sum(),
        }
        return Scores(sums, (batch["rows"], logits.argmax(1).masked_fill(broken, NO_ANSWER)))

    @abstractmethod
    def shares(self, logits: Tensor) -> tuple[Sequence[str], Tensor]:
        """Return the names of the labels, and the probabilities (rows, labels)."""

    def framed_whole(self, text: str) -> np.ndarray:
        (tokens,) = self.tokenizer.encode([text])
        if len(tokens) > self.max_text_tokens:
            raise ValueError(f"the {self.column} has {len(tokens)} tokens, more than the model's "
                             f"maximum of {self.max_text_tokens}: shorten it")  # fmt: skip
        return frame_text(tokens, self.tokenizer, self.model_config.max_length, self.suffix)

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Sequence[tuple[Picture, str]]) -> list[Prediction]:
        """Return the labels of images with texts, the most probable label first.

        `inputs` has one item for each image. If a text has two images, the item of the left image
        comes directly before the item of the right image. Both items get the same prediction. As
        in training, `data.input` decides whether the model reads the images, the texts, or both.

        Raises:
            ValueError: If a text is longer than the model's `max_length`.
        """
        texts = [self.framed_whole(text if self.reads_texts else "") for _, text in inputs]
        samples = join_samples(self.model_config.image_tokens, paired=texts)
        images = self.black_images(len(inputs))
        if self.reads_images:
            images = self.read_pictures([image for image, _ in inputs])
        device = next(model.parameters()).device
        names, shares = self.shares(model(images.to(device), samples.to(device)).float().cpu())
        return [own for own in ranked(names, shares) for _ in range(self.images_together)]


class CaptionedTask(FineTunedTask):
    """Base of tasks over images with captions. The data section must be a `CaptionDataConfig`."""

    words, rows = "captions", "images"

    @cached_property
    def splits(self) -> ImageSplits:
        """Images with captions. Of built-in scenes with the same caption, only one is used."""
        found = load_captions(self.data_config, self.problems, self._progress)
        if parse_source(self.data_config.source).kind != "builtin":
            return found
        return ImageSplits(distinct(found.train), distinct(found.validation), counts=found.counts)

    def training_texts(self) -> Iterable[str]:
        return all_captions(self.splits.train)

    def tokenise(self, split: str, rows: ImageSplit) -> list[list[np.ndarray]]:
        texts = iter(self.framed(split, all_captions(rows)))
        return [[next(texts) for _ in own] for own in rows.values("captions")]

    @cached_property
    def training_rows(self) -> ImageSplit:
        return each_caption(self.splits.train)

    @property
    def train_captions(self) -> list[np.ndarray]:
        """Tokens of each caption, in the order of `training_rows`."""
        return [tokens for own in self.train_tokens for tokens in own]


def distinct(rows: ImageSplit) -> ImageSplit:
    captions = rows.values("captions")
    first = {own: row for row, own in reversed([*enumerate(captions)])}
    return rows.take(np.array(sorted(first.values()), np.int64))
