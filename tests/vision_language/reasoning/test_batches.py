"""Batches of statements: each text beside its own images, broken ones replaced or marked."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from magneto.vision.transforms import Reading
from magneto.vision_language.reasoning.batches import StatementBatches
from magneto.vision_language.reasoning.config import StatementDataConfig
from magneto.vision_language.reasoning.sources import load_statements
from magneto.vision_language.whole_images import WholeImage
from tests.vision_language.reasoning.folders import write_nlvr2

READING = Reading(8)


def batches(folder: Path) -> StatementBatches:
    """Of each statement, a text of as many tokens as its number, after three."""
    found = load_statements(StatementDataConfig(source=str(folder))).validation
    texts = [np.full(3 + number, 10 + number) for number in range(len(found))]
    return StatementBatches(found, texts, 5, READING.blank)


def texts_of(batch: dict[str, Any]) -> list[int]:
    """Return the first token of each text."""
    return batch["samples"].token_ids[batch["samples"].text_starts].tolist()


def test_texts_stand_beside_their_images(tmp_path: Path) -> None:
    write_nlvr2(tmp_path)
    made = batches(tmp_path)
    for batch in (*made.training(WholeImage(READING), 4, 1).batch(0, 2, [0, 1]),
                  *made.evaluation(WholeImage(READING), 5)):  # fmt: skip
        rows = batch["rows"].tolist()
        assert texts_of(batch) == [10 + row for row in rows for _ in range(2)]
        left, right = batch["images"][:, 0, 0, 0].unflatten(0, (-1, 2)).unbind(1)
        assert ((left < right) == (batch["labels"] == 1)).all()
        assert not batch["broken"].any() and len(batch["images"]) == 2 * len(rows)


def test_all_statements_are_evaluated_once(tmp_path: Path) -> None:
    write_nlvr2(tmp_path)
    rows = torch.cat([b["rows"] for b in batches(tmp_path).evaluation(WholeImage(READING), 5)])
    assert sorted(rows.tolist()) == list(range(12))


def test_what_is_missing_or_broken_is_blank_and_marked(tmp_path: Path) -> None:
    write_nlvr2(tmp_path)
    (tmp_path / "dev" / "dev-0-0-img0.png").unlink()
    (tmp_path / "dev" / "dev-1-0-img1.png").write_bytes(b"no image")
    made = batches(tmp_path)
    (batch,) = made.evaluation(WholeImage(READING), 12)
    assert sorted(batch["rows"][batch["broken"]].tolist()) == [0, 2]
    images = batch["images"].unflatten(0, (-1, 2))
    assert (images[batch["broken"]] == 0).all() and (images[~batch["broken"]] != 0).all()


def test_another_statement_stands_in_for_a_broken_one(tmp_path: Path) -> None:
    """With its own text and label; the same whoever makes the batch."""
    write_nlvr2(tmp_path)
    (tmp_path / "dev" / "dev-1-0-img1.png").write_bytes(b"no image")
    made = batches(tmp_path)
    (batch,) = made.training(WholeImage(READING), 12, 1).batch(0)
    assert batch["broken"].sum() == 1 and 2 not in batch["rows"]
    assert texts_of(batch)[::2] == (10 + batch["rows"]).tolist()
    assert (batch["labels"] == torch.from_numpy(made.split.labels)[batch["rows"]]).all()
    halves = made.training(WholeImage(READING), 12, 1).batch(0, 2, [0, 1])
    assert torch.cat([half["rows"] for half in halves]).tolist() == batch["rows"].tolist()
