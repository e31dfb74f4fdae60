"""Fine-tuned models of vision and language as transformers models: losses, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers")

from magneto.hf.export import wrap
from magneto.vision_language.config import (
    ImageCaptionerConfig,
    ImageTextRetrieverConfig,
    QuestionAnsweringConfig,
    VisualReasonerConfig,
)
from magneto.vision_language.heads import (
    ImageCaptioner,
    ImageTextRetriever,
    QuestionAnswerer,
    VisualReasoner,
)
from tests.hf.test_vision_language import IDS, IMAGES, MASK, SIZES

TEXT = {"input_ids": IDS, "attention_mask": MASK}


def made(model: type, config: type, **values: Any) -> Any:
    torch.manual_seed(0)
    return wrap(model(config(**SIZES, **values)).eval(), end=2)


def test_questions() -> None:
    model = made(QuestionAnswerer, QuestionAnsweringConfig, answers=4, pretrained="runs/first")
    assert model.config.core["pretrained"] is None and model.config.num_labels == 4
    targets = torch.tensor([[0, 1, 0.3, 0], [0, 0, 0, 0.6]])
    found = model(IMAGES, **TEXT, labels=targets)
    expected = F.binary_cross_entropy_with_logits(found.logits, targets) * 4
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    # Trainer counts all labels: four questions have sixteen.
    whole = model(IMAGES, **TEXT, labels=targets, num_items_in_batch=16).loss
    assert whole.item() == pytest.approx(expected.item() / 2, rel=1e-5)


def test_statements() -> None:
    model = made(VisualReasoner, VisualReasonerConfig)
    pairs = torch.stack((IMAGES, IMAGES.flip(0)), 1)
    found = model(pairs, **TEXT, labels=torch.tensor([1, 0]))
    expected = F.cross_entropy(found.logits, torch.tensor([1, 0]))
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    with pytest.raises(ValueError, match=r"\(statements, 2, channels, height, width\), not"):
        model(IMAGES, **TEXT)


@torch.no_grad()
def test_retrieval() -> None:
    model = made(ImageTextRetriever, ImageTextRetrieverConfig)
    found = model(IMAGES, **TEXT, return_loss=True)
    own = torch.arange(2)
    losses = [F.cross_entropy(x, own) for x in (found.logits_per_image, found.logits_per_text)]
    assert found.loss.item() == pytest.approx(sum(losses).item() / 2, rel=1e-5)
    alone = model(pixel_values=IMAGES[:1]).image_embeds, model(**TEXT).text_embeds
    assert torch.allclose(alone[0], found.image_embeds[:1], atol=1e-6)
    assert torch.allclose(alone[1], found.text_embeds, atol=1e-6)
    assert model(IMAGES[:1], **TEXT).logits_per_image.shape == (1, 2)


@torch.no_grad()
def test_captions() -> None:
    model = made(ImageCaptioner, ImageCaptionerConfig)
    logits = model(IMAGES, **TEXT).logits
    later = IDS.clone()
    later[0, 2] = 11
    again = model(IMAGES, later, MASK).logits
    assert logits.shape == (2, 4, 30)
    assert torch.equal(logits[0, :2], again[0, :2])
    assert not torch.allclose(logits[0, 2:], again[0, 2:], atol=1e-4)
    with pytest.raises(ValueError, match="config needs bos_token_id"):
        model.generate(IMAGES)
    model.config.bos_token_id, model.config.pad_token_id, model.config.mask_token_id = 1, 0, 3
    written = model.generate(IMAGES, num_beams=1)
    assert len(written) == 2 and not {1, 3} & set(written.flatten().tolist())


@torch.no_grad()
def test_a_configuration_without_pooling_reads_the_class_token() -> None:
    """As what was exported before there was a choice."""
    model = made(QuestionAnswerer, QuestionAnsweringConfig, answers=4)
    older = type(model.config).from_dict(model.config.to_dict())
    del older.core["pooling"]
    again = type(model)(older).eval()
    assert again.core.config.pooling == "first"
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(IMAGES, **TEXT).logits, model(IMAGES, **TEXT).logits)


def test_a_text_without_the_mask_that_is_read_is_refused() -> None:
    for model, config, more in (
        (QuestionAnswerer, QuestionAnsweringConfig, {"answers": 4}),
        (VisualReasoner, VisualReasonerConfig, {}),
    ):
        whole = made(model, config, pooling="mask_token", **more)
        images = of_two(model) if model is VisualReasoner else IMAGES
        whole(images, **TEXT)  # nothing tells which token is the mask
        whole.config.mask_token_id = 9
        with pytest.raises(ValueError, match="the mask token, 9, before each text's end"):
            whole(images, **TEXT)
        masked = torch.tensor([[1, 7, 9, 2], [1, 9, 2, 0]])
        assert whole(images, masked, MASK).logits.shape[0] == 2


HEADS = [
    (QuestionAnswerer, QuestionAnsweringConfig),
    (VisualReasoner, VisualReasonerConfig),
    (ImageTextRetriever, ImageTextRetrieverConfig),
    (ImageCaptioner, ImageCaptionerConfig),
]


def of_two(model: type) -> torch.Tensor:
    """Return the images that the model reads beside two texts."""
    return torch.stack((IMAGES, IMAGES.flip(0)), 1) if model is VisualReasoner else IMAGES


def answer(output: Any) -> torch.Tensor:
    return output.image_embeds if "image_embeds" in output else output.logits


@torch.no_grad()
@pytest.mark.parametrize(("model", "config"), HEADS)
def test_weights_that_stay_on_disk(tmp_path: Path, model: type, config: type) -> None:
    """A table that is read as a whole, and a model that is given no image, too."""
    pytest.importorskip("accelerate")
    more = {"answers": 4} if model is QuestionAnswerer else {}
    whole = made(model, config, **more)
    whole.save_pretrained(tmp_path)
    loaded = type(whole).from_pretrained(
        tmp_path, device_map={"": "disk"}, offload_folder=tmp_path / "offload"
    )
    given: dict[str, Any] = {"pixel_values": of_two(model), **TEXT}
    assert torch.equal(answer(loaded(**given)), answer(whole(**given)))
    if model is ImageTextRetriever:
        assert torch.equal(loaded(**TEXT).text_embeds, whole(**TEXT).text_embeds)


@torch.no_grad()
@pytest.mark.parametrize(("model", "config"), HEADS)
def test_weights_in_bfloat16_take_what_the_processor_makes(model: type, config: type) -> None:
    more = {"answers": 4} if model is QuestionAnswerer else {}
    whole = made(model, config, **more)
    given: dict[str, Any] = {"pixel_values": of_two(model), **TEXT}
    expected = answer(whole(**given))
    found = answer(whole.bfloat16()(**given))
    assert (found.float() - expected).abs().max() <= 0.05 * expected.abs().max()


@pytest.mark.parametrize(
    ("model", "config"), [head for head in HEADS if "Retriever" not in str(head)]
)
def test_as_many_texts_as_images(model: type, config: type) -> None:
    more = {"answers": 4} if model is QuestionAnswerer else {}
    with pytest.raises(ValueError, match="1 images with 2 texts are no pairs"):
        made(model, config, **more)(of_two(model)[:1], **TEXT)
