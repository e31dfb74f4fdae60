"""Small models of timm's own classes, for tests; they are skipped where timm is not installed."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from magneto.hf.weights.weight_files import load_weight_file, save_weight_file
from magneto.vision.classifier import ImageClassifier
from tests.nn.grids import timm_module

SIZES = {"img_size": 24, "patch_size": 8, "num_classes": 5, "embed_dim": 32, "depth": 2,
         "num_heads": 4, "mlp_ratio": 1.5}  # fmt: skip
HEADS = {"num_heads": 4}


def timm_model(architecture: str, **changes: Any) -> nn.Module:
    """One of timm's architectures in small, every parameter with a value of its own."""
    torch.manual_seed(0)
    model = timm_module("timm").create_model(architecture, **{**SIZES, **changes}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def images() -> Tensor:
    return torch.randn(3, 3, 24, 24, generator=torch.Generator().manual_seed(1))


def check_same_answers(theirs: Any, ours: Any) -> None:
    """Features of the stack, logits, and the gradient of every weight of the patches."""
    x = images()
    expected, found = theirs(x), ours(x)
    difference = (expected - found).abs().max().item()
    print(f"logits: largest difference {difference:.2e} of {expected.abs().max().item():.2f}")
    assert difference <= 1e-5
    features = ours.encoder(ours.class_token(ours.embedding(x)))
    assert (theirs.forward_features(x) - features).abs().max() <= 1e-5
    grads = [
        torch.autograd.grad(answer.square().sum(), weight)[0]
        for answer, weight in [
            (theirs(x), theirs.patch_embed.proj.weight),
            (ours(x), ours.embedding.proj.weight),
        ]
    ]
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)


def check_there_and_back(theirs: Any, ours: ImageClassifier, name: str, folder: Path) -> None:
    """What is written holds timm's tensors bit by bit, and timm makes the same model of it."""
    save_weight_file(ours, name, folder)
    again = load_weight_file(folder)
    assert isinstance(again, ImageClassifier) and again.config == ours.config
    create = timm_module("timm").create_model
    back = create(f"local-dir:{folder}", pretrained=True).eval()
    expected, found = theirs.state_dict(), back.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())
    assert torch.equal(back(images()), theirs(images()))
