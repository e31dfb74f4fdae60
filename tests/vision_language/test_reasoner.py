"""The reasoner: two passes, one head, as in BEiT-3's code."""

from typing import Any

import numpy as np
import pytest
import torch

from magneto.data.tokenizer import ByteTokenizer
from magneto.recipe import load_recipe
from magneto.vision_language.config import VisualReasonerConfig
from magneto.vision_language.heads import VisualReasoner
from magneto.vision_language.samples import join_samples

SIZES: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "ffn_width": 32, "image_size": 8,
                         "patch_size": 4, "vocab_size": 300, "max_length": 12}  # fmt: skip


def reasoner(**changes: Any) -> VisualReasoner:
    torch.manual_seed(0)
    return VisualReasoner(VisualReasonerConfig(**{**SIZES, **changes})).eval()


def texts(*lengths: int) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.integers(5, 300, length) for length in lengths]


def judged(model: VisualReasoner, images: torch.Tensor, said: list[np.ndarray]) -> torch.Tensor:
    pairs = [text for text in said for _ in range(2)]
    return model(images.flatten(0, 1), join_samples(5, paired=pairs))


def test_the_head_reads_each_pass() -> None:
    """By hand: each image is encoded with its statement alone; the features are put in a row."""
    model, said = reasoner(), texts(3, 7)
    images = torch.randn(2, 2, 3, 8, 8)
    rows = []
    for of_one, text in zip(images, said, strict=True):
        row = []
        for image in of_one:
            one = join_samples(5, paired=[text])
            vision, language = model.encoder(
                image[None], one.token_ids, one.token_positions, one.packing
            )
            row += [vision[0], language[0]]
        rows.append(torch.cat(row))
    expected = model.head(torch.stack(rows))
    torch.testing.assert_close(judged(model, images, said), expected)


def test_with_the_released_scale_of_the_head_the_first_answer_is_even() -> None:
    with torch.no_grad():
        released, ours = (
            judged(reasoner(head_scale=scale), torch.randn(4, 2, 3, 8, 8), texts(3, 4, 5, 6))
            for scale in (0.001, 1.0)
        )
    assert released.shape == (4, 2) and released.abs().max() < 1e-2
    assert ours.abs().max() > 0.1


@pytest.mark.parametrize(
    ("recipe", "placement", "millions"),
    [
        ("visual-reasoning/nlvr2-24l", "sub", 208.8),
        ("visual-reasoning/nlvr2-24l", "pre", 208.6),
        ("image-text-retrieval/coco-24l", "sub", 207.2),
        ("image-captioning/coco-24l", "sub", 241.7),
    ],
)
def test_parameters_of_the_papers_model(recipe: str, placement: str, millions: float) -> None:
    task: Any = load_recipe(recipe, {"model.placement": placement}).build_task()
    task.tokenizer = ByteTokenizer()  # the recipe has the vocabulary's size
    with torch.device("meta"):
        count = sum(p.numel() for p in task.build_model().parameters())
    assert round(count / 1e6, 1) == millions


@pytest.mark.slow
def test_it_is_one_graph() -> None:
    model = reasoner()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    images, said = torch.randn(3, 2, 3, 8, 8), texts(3, 9, 6)
    pairs = join_samples(5, paired=[text for text in said for _ in range(2)])
    torch.testing.assert_close(
        compiled(images.flatten(0, 1), pairs), model(images.flatten(0, 1), pairs)
    )
