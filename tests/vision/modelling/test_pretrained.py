"""The encoder of a pre-training run begins a classifier."""

from pathlib import Path

import pytest
import torch
from magneto.vision.classifier import ImageClassifier

from magneto.runs import load_run
from magneto.vision.config import ImageClassifierConfig
from magneto.vision.modelling.pretrained import encoder_weights
from tests.vision.modelling.trained import train_model
from tests.vision.tokenizer.trained import train_tokenizer

CLASSIFIER = {
    "width": 16, "layers": 2, "heads": 2, "ffn_width": 32, "image_size": 8, "patch_size": 2,
    "channels": 1, "classes": 10, "positions": "learned", "max_length": 17,
    "class_token": "learned",
}  # fmt: skip


def test_a_classifier_has_the_same_names(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    train_model(tmp_path / "run", training__steps=1)
    weights = {name: tensor.read() for name, tensor in encoder_weights(tmp_path / "run").items()}
    classifier = ImageClassifier(ImageClassifierConfig(**CLASSIFIER)).eval()
    kept = classifier.load_state_dict(weights, strict=False)
    assert kept.missing_keys == ["head.weight", "head.bias"] and not kept.unexpected_keys
    model = load_run(tmp_path / "run", "auto", {}).model
    images, none = torch.randn(2, 1, 8, 8), torch.empty(2, 0, dtype=torch.long)
    patches = classifier.class_token(classifier.embedding(images))
    read = model.class_token(model.mask_token(model.embedding(images), none))  # type: ignore[operator]
    assert torch.equal(classifier.encoder(patches), model.encoder(read))  # type: ignore[operator]


def test_other_runs_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    train_tokenizer(tmp_path / "tokenizer", training__steps=1)
    with pytest.raises(ValueError, match="no masked image model: give an image-modelling run"):
        encoder_weights(tmp_path / "tokenizer")
    with pytest.raises(FileNotFoundError):
        encoder_weights(tmp_path / "nowhere")
