"""Our image classifier inside transformers."""

from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from magneto.hf.export import wrap  # noqa: E402
from magneto.vision.classifier import ImageClassifier  # noqa: E402
from magneto.vision.config import ImageClassifierConfig  # noqa: E402


@pytest.mark.parametrize("pooling", ["mean", "mean_then_norm", "first"])
def test_round_trip(tmp_path: Path, pooling: str) -> None:
    hf.register()
    torch.manual_seed(0)
    config = ImageClassifierConfig(
        width=32, layers=2, heads=4, ffn_width=48, image_size=16, patch_size=4, classes=5,
        positions="learned", max_length=17, class_token="learned", pooling=pooling,  # type: ignore
    )  # fmt: skip
    model = ImageClassifier(config).eval()
    torch.nn.init.normal_(model.head.weight)
    wrapped = hf.MagnetoForImageClassification(hf.MagnetoImageConfig.of(config), model).eval()
    wrapped.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    images, labels = torch.randn(3, 3, 16, 16), torch.tensor([0, 4, 2])
    output = loaded(images, labels=labels, output_hidden_states=True)
    assert torch.equal(output.logits, model(images))
    assert len(output.hidden_states) == 3
    expected = torch.nn.functional.cross_entropy(output.logits, labels)
    assert output.loss.item() == pytest.approx(expected.item())
    assert loaded.config.num_labels == 5


@torch.no_grad()
def test_weights_in_bfloat16_take_what_the_processor_makes() -> None:
    torch.manual_seed(0)
    config = ImageClassifierConfig(
        width=16, layers=2, heads=2, ffn_width=24, image_size=8, patch_size=4, classes=3
    )
    model, pixels = wrap(ImageClassifier(config)), torch.randn(2, 3, 8, 8)
    expected = model(pixels).logits
    found = model.bfloat16()(pixels).logits
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).abs().max() <= 0.05 * expected.abs().max()
