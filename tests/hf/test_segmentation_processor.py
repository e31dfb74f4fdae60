"""From pictures to what a segmentation model reads, and back to the pictures' size."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from magneto import hf
from magneto.vision.decoding import EncodedPicture
from magneto.vision.transforms import Reading
from tests.vision.image_files import Image, encoded, photo


def test_the_ratio_is_kept() -> None:
    processor = hf.MagnetoSegmentationProcessor(fit=(2048, 512))
    found = processor(np.zeros((256, 400, 3), np.uint8), return_tensors="pt")["pixel_values"]
    assert found.shape == (1, 3, 512, 800) and (found == -1).all()
    own = hf.MagnetoSegmentationProcessor()(np.zeros((25, 40), np.uint8), return_tensors="np")
    assert own["pixel_values"].shape == (1, 3, 25, 40)


def odd_files() -> dict[str, bytes]:
    pixels = photo()
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held upright
    clear = np.full((*pixels.shape[:2], 1), 255, np.uint8)
    clear[:20] = 64
    return {
        "turned": encoded(pixels, "PNG", exif=turned),
        "transparent": encoded(np.concatenate((pixels, clear), axis=2)),
        "16 bits": encoded(pixels[..., 0].astype(np.uint16) * 257),
        "palette": encoded(Image.fromarray(pixels).convert("P")),
    }


@pytest.mark.parametrize("kind", odd_files())
def test_files_are_read_as_a_run_reads_them(kind: str) -> None:
    content = odd_files()[kind]
    found = hf.MagnetoSegmentationProcessor()(Image.open(io.BytesIO(content)), return_tensors="np")
    wanted = Reading(0).normalise(EncodedPicture(content).pixels())
    np.testing.assert_array_equal(found["pixel_values"][0], wanted)


def test_logits_are_resized_before_classes_are_chosen() -> None:
    logits = torch.tensor([[[[5.0, -5.0]], [[0.0, 0.0]], [[-5.0, 5.0]]]])
    processor, outputs = hf.MagnetoSegmentationProcessor(), SimpleNamespace(logits=logits)
    (found,) = processor.post_process_semantic_segmentation(outputs, [(2, 8)])
    assert found.tolist() == [[0, 0, 0, 0, 2, 2, 2, 2]] * 2
    (own,) = processor.post_process_semantic_segmentation(outputs)
    assert own.tolist() == [[0, 2]]


def test_what_is_refused() -> None:
    processor = hf.MagnetoSegmentationProcessor()
    with pytest.raises(TypeError, match="uint8, not of float64"):
        processor(np.zeros((4, 4)))
    with pytest.raises(ValueError, match="several sizes"):
        processor([np.zeros((4, 4), np.uint8), np.zeros((4, 5), np.uint8)])
    with pytest.raises(ValueError, match="1 or 3 channels, not 2"):
        hf.MagnetoSegmentationProcessor(2)
