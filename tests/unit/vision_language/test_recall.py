"""Recall against a plain loop over sorted answers, with ties and broken images."""

from collections import Counter
from itertools import permutations

import pytest
import torch
from torch.nn import functional as F

from magneto.vision_language import retrieval as scores
from magneto.vision_language.retrieval import RANKS, chance, recalls


def by_sorting(similarity: torch.Tensor, right: torch.Tensor, rank: int) -> float:
    hits = 0
    for row, known in zip(similarity, right, strict=True):
        hits += bool(known[row.argsort(descending=True)[:rank]].any())
    return hits / len(right)


@pytest.mark.parametrize("piece", [1024, 7])
def test_against_sorting(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "PIECE", piece)
    torch.manual_seed(0)
    images, texts = F.normalize(torch.randn(20, 4)), F.normalize(torch.randn(50, 4))
    owners = torch.cat((torch.arange(20), torch.randint(20, (30,))))
    found = recalls(images, texts, owners, torch.zeros(20, dtype=torch.bool))
    right = owners[:, None] == torch.arange(20)
    for rank in RANKS:
        text = by_sorting(images @ texts.T, right.T, rank)
        image = by_sorting(texts @ images.T, right, rank)
        assert found[f"text_recall_at_{rank}"] == pytest.approx(text)
        assert found[f"image_recall_at_{rank}"] == pytest.approx(image)
    kinds = [found[f"{kind}_recall_at_{rank}"] for kind in ("text", "image") for rank in RANKS]
    assert found["mean_recall"] == pytest.approx(sum(kinds) / 6)


def test_a_constant_answer_finds_nothing() -> None:
    same = torch.ones(11, 1)
    found = recalls(same, same, torch.arange(11), torch.zeros(11, dtype=torch.bool))
    assert set(found.values()) == {0.0}


def test_what_is_no_number_is_not_found() -> None:
    none, owners = torch.zeros(8, dtype=torch.bool), torch.arange(8)
    nothing = torch.full((8, 4), torch.nan)
    assert set(recalls(nothing, nothing, owners, none).values()) == {0.0}
    single = torch.zeros(1, dtype=torch.long)  # among one answer
    assert set(recalls(nothing[:1], nothing[:1], single, single.bool()).values()) == {0.0}
    # One image of eight: it finds nothing, and stands before what other captions ask for.
    images = torch.eye(8)
    images[3] = torch.nan
    found = recalls(images, torch.eye(8), owners, none)
    assert found["text_recall_at_1"] == found["text_recall_at_10"] == 7 / 8
    assert found["image_recall_at_1"] == 0 and found["image_recall_at_5"] == 7 / 8
    # Of two captions of each image one is a number: it is found, behind the others' seven.
    texts = torch.cat((torch.eye(8), torch.full((8, 8), torch.inf)))
    found = recalls(torch.eye(8), texts, owners.repeat(2), none)
    assert found["text_recall_at_5"] == 0 and found["text_recall_at_10"] == 1
    assert found["image_recall_at_1"] == 0.5


def test_broken_images_are_never_found() -> None:
    images = torch.eye(4)
    broken = torch.tensor([True, False, False, False])
    found = recalls(images, images, torch.arange(4), broken)
    assert found["text_recall_at_1"] == found["image_recall_at_10"] == 0.75


def test_chance_is_the_mean_over_all_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "RANKS", (1, 2))
    right = Counter({1: 3, 2: 1})
    for rank, found in chance(5, right).items():
        hits = sum(
            how_many * any(place < answers for place in order[:rank])
            for order in permutations(range(5))
            for answers, how_many in right.items()
        )
        assert found == pytest.approx(hits / 120 / 4)
    assert chance(1, Counter({1: 1})) == {1: 1.0, 2: 1.0}
