"""Visual question answering as a task: sums, scores, runs that begin with another."""

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from magneto.vision_language.tables import LOST, MISSING
from tests.evaluating import measured, predicted
from tests.said import Said
from tests.unit.vision_language.folders import annotated, image_file, write_split, write_vqa
from tests.unit.vision_language.small_tasks import question_task


def test_loss_is_the_sum_of_all_answers_over_questions(tmp_path: Path) -> None:
    """The mean over answers, times their number, as in the released code."""
    task = question_task(tmp_path, {"head_rate": 20.0})
    model = task.build_model()
    (batch,) = task.train_stream(4, 1).batch(0)
    loss, logits = task.loss(model, batch), model(batch["images"], batch["samples"])
    mean = F.binary_cross_entropy_with_logits(logits, batch["targets"])
    torch.testing.assert_close(loss.total / loss.count, mean * len(task.answers))
    assert loss.count == 4 and loss.logs["broken"] == 0
    credit = batch["targets"][torch.arange(4), logits.argmax(1)].sum()
    torch.testing.assert_close(loss.logs["soft_score"], credit)
    rates = task.rate_multipliers(model)
    assert set(rates.values()) == {20.0} and all(name.startswith("head.") for name in rates)
    assert question_task(tmp_path).rate_multipliers(model) == {}


def test_scores_are_official_and_unknown_answers_count(tmp_path: Path) -> None:
    """Of "blue" seven times and "The blue" three times all ten agree once they are normalised."""
    task = question_task(tmp_path, least_answer_count=5, validation_images=6)
    held = task.splits.validation
    assert all({*said} & {*task.answers} for said in held.values("answers"))
    model = task.build_model()
    found = measured(task, model)
    assert found["unknown"] == 0 and found["broken"] == 0
    answers = dict(task.given_answers(predicted(task, model)))
    right = [
        answers[number] == said
        for number, said in zip(held.values("id"), held.values("majority"), strict=True)
    ]
    assert found["accuracy"] == pytest.approx(sum(right) / 12) and len(answers) == 12
    assert list(answers) == sorted(answers)
    (tmp_path / "few.txt").write_text("yes\nno\n")
    few = question_task(tmp_path, answers=str(tmp_path / "few.txt"), validation_images=6)
    assert len(few.splits.train) == 6  # half of them can't be answered, and teach nothing
    scores = measured(few, few.build_model())
    assert scores["unknown"] == 0.5 and scores["accuracy_other"] == 0
    assert scores["accuracy"] <= 0.5


def test_what_the_look_up_does_not_know_can_be_right(tmp_path: Path) -> None:
    """By the raw look-up nothing of "two" is taught; the metric takes "2" for it all the same."""
    write_vqa(tmp_path)
    (tmp_path / "known.txt").write_text("2\nred\n")
    asked = [{"image_id": 1001, "question": f"{n}?", "question_id": n} for n in (1, 2)]
    said = [["two"] * 6 + ["couple"] * 4, ["two"] * 10]
    notes = [annotated(n, 1001, answers, "two") for n, answers in zip((1, 2), said, strict=True)]
    write_split(tmp_path / "vqa", "val2014", asked, notes)
    task, told = question_task(tmp_path, answers=str(tmp_path / "known.txt"),
                         validation_split="val2014"), Said()  # fmt: skip
    task.prepare(told)
    model = task.build_model()
    torch.nn.init.zeros_(model.head[-1].weight)
    model.head[-1].bias.data = torch.tensor([1.0, 0.0])  # "2", whatever it is asked
    found = measured(task, model)
    assert found["soft_score"] == 0 and found["accuracy"] == found["unknown"] == 0.5
    assert "1 validation question without a right answer" in told.lines[0]
    assert task.baseline()["unknown"] == 0.5


def test_a_question_about_a_missing_image_has_no_answer(tmp_path: Path) -> None:
    """What was missing, and what the look-ups know, is said."""
    write_vqa(tmp_path)
    image_file(tmp_path, "train2014", 1).unlink()
    image_file(tmp_path, "val2014", 1003).unlink()
    task, said = question_task(tmp_path, validation_split="val2014"), Said()
    task.prepare(said)
    assert f"2 {MISSING}" in said.lines[0] and f"2 {LOST}" in said.lines[0]
    assert "10 training questions, 12 validation questions, 4 answers" in said.lines[0]
    assert "covers 85.00% of the annotations, 100.00% if they are normalised" in said.lines[0]
    given = task.given_answers(predicted(task, task.build_model()))
    assert {answer for number, answer in given if number in (10030, 10031)} == {""}


def test_the_baseline_reads_questions_alone(tmp_path: Path) -> None:
    """Of both questions either answer is as common: who sees no image is half right."""
    task = question_task(tmp_path, validation_images=6)
    found = task.baseline()
    assert found["accuracy"] == 0.5 and found["unknown"] == 0
    assert found.keys() == measured(task, task.build_model()).keys()
    asked = torch.cat([batch["targets"] for batch in task.validation_batches()])
    means = torch.tensor(task.splits.train_targets.means()).float().expand_as(asked)
    loss = F.binary_cross_entropy(means, asked, reduction="sum")
    assert found["loss"] == pytest.approx(float(loss) / 12, rel=1e-5)


def test_what_is_left_out_of_the_input(tmp_path: Path) -> None:
    rows = torch.arange(4).numpy()
    batch = question_task(tmp_path, input="question").fixed_rows(rows)
    assert not batch["images"].any() and len(batch["samples"].token_ids) > 40
    batch = question_task(tmp_path, input="image").fixed_rows(rows)
    assert batch["images"].any() and len(batch["samples"].token_ids) == 8  # <s> and </s>


def test_a_test_split_is_not_trained_with(tmp_path: Path) -> None:
    """It has no baseline, either: its answers are not public."""
    write_vqa(tmp_path)
    (tmp_path / "known.txt").write_text("yes\nno\n")
    known = str(tmp_path / "known.txt")
    task = question_task(tmp_path, validation_split="test-dev2015", answers=known)
    assert task.baseline() == {}
    for asked in (lambda: task.train_stream(4, 1), task.training_texts):
        with pytest.raises(ValueError, match="no public answers to validate on"):
            asked()


def test_mistakes_are_told(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    with pytest.raises(ValueError, match="list has 0 answers"):
        question_task(tmp_path, least_answer_count=99).prepare()
    with pytest.raises(ValueError, match=r"answer list has 4 answers, but model.answers is 5"):
        question_task(tmp_path, {"answers": 5}).prepare()
    # What can be set helps where there are other answers, and is named only there.
    for split, first in (("train2014", 1), ("val2014", 1001)):
        asked = [{"image_id": first, "question": "Is it?", "question_id": first}]
        notes = [annotated(first, first, ["Yes"] * 10, "Yes")]
        write_split(tmp_path / "vqa", split, asked, notes)
    with pytest.raises(ValueError, match="all questions have the same answer, 'yes'"):
        question_task(tmp_path, validation_images=1).prepare()


def test_probabilities_of_answers_are_those_if_exactly_one_is_right(tmp_path: Path) -> None:
    task = question_task(tmp_path)
    logits = torch.tensor([[2.0, -1.0, 0.5]])
    found = task.shares(logits)[1]
    each = logits.sigmoid()[0].tolist()
    alone = [math.prod(p if i == j else 1 - p for j, p in enumerate(each)) for i in range(3)]
    assert found[0].tolist() == pytest.approx([p / sum(alone) for p in alone])
