"""The `model` and `data` sections of recipes of image classification. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magneto.data.files import existing_path
from magneto.vision.config import ImageDataConfig, ImageEncoderConfig


@dataclass(frozen=True, kw_only=True)
class ImageClassifierConfig(ImageEncoderConfig):
    """An encoder over patches, and a head.

    Attributes:
        classes: Of the answer.
        pooling: What the head sees: the "mean" of the patches' features; the same mean of features
            that the stack's last norm has not seen, with that norm after it ("mean_then_norm", as
            BEiT-3 does; the mean alone where a placement, such as Post-LN, has no last norm); or
            the "first" feature, the class token's (as ViT does).
        objective: What training minimises: "cross_entropy" over the classes, or
            "binary_cross_entropy" of each class by itself, summed over the classes (arXiv
            2110.00476, section 4.1).
        label_smoothing: Share of a label that is spread over all classes (0.1 in the paper).
        layer_decay: Each layer learns at the rate of the one above it times this; 1 for none (0.65
            and 0.8 in the paper).
        pretrained: Directory of a run of images whose patches, positions and encoder to begin with;
            "{placement}" in it stands for the placement's name. None begins from scratch.
    """

    classes: int = 1000
    pooling: Literal["mean", "mean_then_norm", "first"] = "mean"
    objective: Literal["cross_entropy", "binary_cross_entropy"] = "cross_entropy"
    label_smoothing: float = 0.0
    layer_decay: float = 1.0
    pretrained: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(
                f"label_smoothing must be at least 0 and below 1, not {self.label_smoothing}"
            )
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay must be above 0 and at most 1, not {self.layer_decay}")
        if self.pooling == "first" and self.class_token == "none":
            raise ValueError("pooling 'first' needs class_token 'learned'")


@dataclass(frozen=True, kw_only=True)
class ImageClassificationDataConfig(ImageDataConfig):
    """Labelled images: the `data` section of a recipe. See docs/concepts/image_classification.md.

    Attributes:
        mixup: Alpha of the Beta distribution by which pairs of training images are mixed (0.8 in
            the paper); 0 is off.
        cutmix: Likewise of the share of pixels that stay where a part of one is put into another
            (1.0 in the paper); 0 is off. Where both are on, each pair takes one of them.
        class_names: Path of a text file with a class's name in each line, in the order of their
            numbers, in place of `classes`. For a run whose classes have other names than the
            folders that it is measured on: ImageNet's 1000 wnids, n01440764 and so on.
        candidates: Which classes an answer is chosen from in validation: "all" that the model has,
            or those that are "present" in the validation images (200 of ImageNet-A and -R).
    """

    mixup: float = 0.0
    cutmix: float = 0.0
    class_names: str | None = None
    candidates: Literal["all", "present"] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")


def given_names(data: ImageClassificationDataConfig) -> tuple[str, ...] | None:
    """Return the names of the classes that a recipe gives; None for those of the data.

    Raises:
        FileNotFoundError: If there is no file of them; names the nearest.
        ValueError: If two classes have one name.
    """
    if data.class_names is None:
        return data.classes
    lines = existing_path(data.class_names).read_text(encoding="utf-8").splitlines()
    names = tuple(line.strip() for line in lines if line.strip())
    if len(set(names)) < len(names):
        raise ValueError(f"{data.class_names} has a class's name twice")
    return names
