"""Segmentation models in transformers: directory, pipeline and loss."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from magneto.hf.export import wrap  # noqa: E402
from magneto.vision.config import SegmentationDataConfig  # noqa: E402
from magneto.vision.segmentation import Segmentation  # noqa: E402
from tests.unit.vision.small import small_config, small_model  # noqa: E402

NAMES = ("sky", "road", "tree", "car", "sign")


def exported(folder: Path, **changes: Any) -> tuple[Segmentation, Any]:
    """Export a model whose predictions differ between pixels."""
    data = SegmentationDataConfig(classes=NAMES, fit=(64, 32), normalisation="imagenet")
    task = Segmentation(small_config(**changes), data, 1)
    model = small_model(**changes)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    auto = hf.export_model("segmentation", model, data, folder)
    assert auto == "AutoModelForSemanticSegmentation"
    return task, model


@torch.no_grad()
@pytest.mark.parametrize("inference", ["slide", "whole"])
def test_the_pipeline_predicts_what_the_run_predicts(tmp_path: Path, inference: Any) -> None:
    """Also with weights on disk, where a window's logits need no others; bfloat16 is near."""
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("accelerate")
    task, model = exported(tmp_path / "out", inference=inference, pretrained="gone")
    pixels = np.random.default_rng(0).integers(0, 256, (25, 41, 3), dtype=np.uint8)
    expected = task.segment(model, pixels)
    assert len(np.unique(expected)) > 1
    place = str(tmp_path / "out")
    pipe = transformers.pipeline("image-segmentation", model=place, trust_remote_code=True)
    found = np.full(expected.shape, 255, np.uint8)
    for each in pipe(image.fromarray(pixels)):
        found[np.asarray(each["mask"]) > 0] = NAMES.index(each["label"])
    assert np.array_equal(found, expected)
    assert pipe.model.config.core["pretrained"] is None
    load: Any = hf.MagnetoForSemanticSegmentation.from_pretrained
    values = torch.randn(1, 3, 25, 41, generator=torch.Generator().manual_seed(0))
    logits = load(place)(values).logits
    disk = load(place, device_map={"": "disk"}, offload_folder=tmp_path / "offload")
    if inference == "whole":
        with pytest.raises(ValueError, match="needs all weights in memory"):
            disk(values)
    else:
        assert torch.equal(disk(values).logits, logits)
    half = load(place, dtype=torch.bfloat16)(values).logits
    assert (half - logits).abs().max() <= 0.1 * logits.abs().max()


def test_what_does_not_fit_is_said() -> None:
    """The loss is compared with plain torch in tests/oracles/test_hf_trainer.py."""
    model, masks = wrap(small_model()), torch.randint(5, (1, 16, 16))
    with pytest.raises(ValueError, match="16 x 16 pixels, not 16 x 20"):
        model(torch.randn(1, 3, 16, 20), labels=masks)
    with pytest.raises(ValueError, match="output_hidden_states"):
        model(torch.randn(1, 3, 16, 16), output_hidden_states=True)
