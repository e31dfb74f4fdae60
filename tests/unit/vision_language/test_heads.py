"""What heads read of images and texts: each way beside a loop over samples; and the models."""

from typing import Any

import numpy as np
import pytest
import torch

from magneto.config import ConfigError
from magneto.data.tokenizer import ByteTokenizer
from magneto.recipe import load_recipe
from magneto.vision_language.config import (
    IMAGES,
    ImageTextRetrieverConfig,
    QuestionAnsweringConfig,
    VisualReasonerConfig,
)
from magneto.vision_language.heads import ImageTextRetriever, QuestionAnswerer, VisualReasoner
from magneto.vision_language.model import (
    FirstOfImage,
    FirstOfText,
    MaskOfText,
    MeanOfImage,
    MeanOfText,
    PairPooling,
)
from magneto.vision_language.samples import Samples, join_samples

SIZES: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "ffn_width": 32, "image_size": 8,
                         "patch_size": 4, "vocab_size": 300, "max_length": 12}  # fmt: skip
LENGTHS = (3, 7, 4)
POOLINGS = ("first", "mask_token")
# With how many images each reads a text.
HEADS: dict[str, Any] = {
    "questions": (QuestionAnswerer, QuestionAnsweringConfig, {"answers": 4}, 1),
    "statements": (VisualReasoner, VisualReasonerConfig, {}, IMAGES),
}


def texts(*lengths: int) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.integers(5, 300, length) for length in lengths]


def head(name: str, pooling: str = "first", **changes: Any) -> Any:
    torch.manual_seed(0)
    model, config, more, _ = HEADS[name]
    return model(config(**SIZES, **more, pooling=pooling, **changes)).eval()


def by_loop(part: Any, images: list[torch.Tensor], words: list[torch.Tensor]) -> list[Any]:
    """What a module reads, of one sample after another."""
    return {
        FirstOfImage: [image[0] for image in images],
        MeanOfImage: [sum(image[1:]) / (len(image) - 1) for image in images],
        FirstOfText: [text[0] for text in words],
        MeanOfText: [sum(text) / len(text) for text in words],
        MaskOfText: [text[-2] for text in words],
    }[type(part)]


@pytest.mark.parametrize(
    "part", [FirstOfImage(), MeanOfImage(5), FirstOfText(), MeanOfText(), MaskOfText()]
)
def test_each_is_a_loop_over_samples(part: Any) -> None:
    """Of images alone, pairs and texts alone; their numbers differ."""
    first, second = texts(3, 7), texts(4)
    samples = join_samples(5, images=2, paired=first, alone=second)
    vision, language = torch.randn(20, 16), torch.randn(14, 16)
    expected = by_loop(part, list(vision.split(5)), list(language.split([3, 7, 4])))
    torch.testing.assert_close(part(vision, language, samples), torch.stack(expected))


@pytest.mark.parametrize("part", [FirstOfText(), MeanOfText(), MaskOfText()])
def test_no_texts(part: Any) -> None:
    found = part(torch.randn(10, 16), torch.randn(0, 16), join_samples(5, images=2))
    assert found.shape == (0, 16)


def test_parts_stand_in_a_row_and_unread_features_have_gradients_of_zeros() -> None:
    vision, language = (torch.randn(count, 16, requires_grad=True) for count in (15, 14))
    samples = join_samples(5, paired=texts(*LENGTHS))
    both = PairPooling([FirstOfImage(), FirstOfText()])(vision, language, samples)
    assert torch.equal(both, torch.cat((vision[::5], language[[0, 3, 10]]), dim=-1))
    PairPooling([MaskOfText()])(vision, language, samples).sum().backward()
    assert vision.grad is not None and not vision.grad.any()
    assert language.grad is not None
    assert language.grad.any(1).nonzero().flatten().tolist() == [1, 8, 12]


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_batch_is_its_samples_and_every_weight_has_a_gradient(name: str, pooling: str) -> None:
    model, said, each = head(name, pooling), texts(*LENGTHS), HEADS[name][3]
    images = torch.randn(3 * each, 3, 8, 8)
    found = model(images, join_samples(5, paired=[text for text in said for _ in range(each)]))
    alone = [
        model(some, join_samples(5, paired=[text] * each))
        for some, text in zip(images.split(each), said, strict=True)
    ]
    torch.testing.assert_close(found, torch.cat(alone))
    found.square().sum().backward()
    # Ranks wait for every gradient, also of what the top layer makes of what is not read.
    assert all(weight.grad is not None for weight in model.parameters())


@torch.no_grad()
def test_retrieval_by_means() -> None:
    torch.manual_seed(0)
    model = ImageTextRetriever(ImageTextRetrieverConfig(**SIZES, pooling="mean")).eval()
    said, images = texts(*LENGTHS), torch.randn(2, 3, 8, 8)
    samples = join_samples(5, images=2, alone=said)
    found = model(images, samples)[:2]
    vision, language = model.encoder(
        images, samples.token_ids, samples.token_positions, samples.packing
    )
    means = (
        torch.stack([image[1:].mean(0) for image in vision.split(5)]),
        torch.stack([text.mean(0) for text in language.split(LENGTHS)]),
    )
    for vectors, mean, matrix in zip(
        found, means, (model.vision_head, model.language_head), strict=True
    ):
        expected = torch.nn.functional.normalize(matrix(mean), dim=-1)
        torch.testing.assert_close(vectors, expected)
    alone = model(images[:0], join_samples(5, alone=said))
    assert alone[0].shape == (0, 16)
    torch.testing.assert_close(alone[1], found[1])


def test_a_mask_stands_behind_the_words() -> None:
    changes = {"model.pooling": "mask_token", "model.max_length": 8, "data.tokenizer": "bytes"}
    task: Any = load_recipe("visual-question-answering/tiny", changes).build_task()
    tokenizer = ByteTokenizer()
    begin, mask, end = tokenizer.begin, tokenizer.mask, tokenizer.end
    framed = task.framed("training", ["", "abcde", "abcdef"])
    assert [row.tolist() for row in framed] == [
        [begin, mask, end], [begin, *b"abcde", mask, end], [begin, *b"abcde", mask, end]
    ]  # fmt: skip
    assert task.framed_whole("abcde", "question").tolist() == framed[1].tolist()
    with pytest.raises(ValueError, match="the question has 6 tokens, the model reads 5"):
        task.framed_whole("abcdef", "question")


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    recipe = load_recipe("visual-reasoning/tiny", {"model.pooling": "mask_token"})
    task: Any = recipe.build_task()
    task.tokenizer = ByteTokenizer()
    task.tokenizer.mask = None
    with pytest.raises(ValueError, match=r"model\.pooling mask_token: the tokenizer has no mask"):
        task.framed("training", ["a"])


@pytest.mark.parametrize(
    ("recipe", "changes", "words"),
    [
        ("image-text-retrieval/tiny", {"model.pooling": "mask_token"}, "model.pooling.*mask_token"),
        ("visual-reasoning/tiny", {"model.pooling": "mean"}, "model.pooling.*mean"),
        ("image-captioning/tiny", {"model.pooling": "mean"}, "pooling"),
        ("visual-reasoning/tiny", {"model.pooling": "mask_token", "model.max_length": 3},
         "max_length must be 4 or more, not 3"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(recipe: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_recipe(recipe, changes)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("pooling", POOLINGS)
def test_it_is_one_graph(pooling: str) -> None:
    model = head("questions", pooling)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    given: tuple[torch.Tensor, Samples]
    for lengths in (LENGTHS, (5, 2, 9)):
        given = torch.randn(3, 3, 8, 8), join_samples(5, paired=texts(*lengths))
        torch.testing.assert_close(compiled(*given), model(*given))


def judged(model: VisualReasoner, images: torch.Tensor, said: list[np.ndarray]) -> torch.Tensor:
    pairs = [text for text in said for _ in range(2)]
    return model(images.flatten(0, 1), join_samples(5, paired=pairs))


def test_the_head_reads_each_pass() -> None:
    """By hand: each image is encoded with its statement alone; the features are put in a row."""
    model, said = head("statements"), texts(3, 7)
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
            judged(
                head("statements", head_scale=scale), torch.randn(4, 2, 3, 8, 8), texts(3, 4, 5, 6)
            )
            for scale in (0.001, 1.0)
        )
    assert released.shape == (4, 2) and released.abs().max() < 1e-2
    assert ours.abs().max() > 0.1


@pytest.mark.parametrize(
    ("recipe", "placement", "millions"),
    [
        ("visual-question-answering/vqa-24l", "sub", 210.9),
        ("visual-question-answering/beit3-base-480", "sub", 227.4),
        ("visual-reasoning/nlvr2-24l", "sub", 208.8),
        ("visual-reasoning/nlvr2-24l", "pre", 208.6),
        ("image-text-retrieval/coco-24l", "sub", 207.2),
        ("image-captioning/coco-24l", "sub", 241.7),
    ],
)
def test_parameters_of_the_large_recipes(recipe: str, placement: str, millions: float) -> None:
    task: Any = load_recipe(recipe, {"model.placement": placement}).build_task()
    task.tokenizer = ByteTokenizer()  # the recipe has the vocabulary's size
    with torch.device("meta"):
        count = sum(p.numel() for p in task.build_model().parameters())
    assert round(count / 1e6, 1) == millions
