"""Visual question answering: questions of every source, answers and their scores, the task."""

import gzip
import hashlib
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.data.problems import MALFORMED, Counts, DataProblems
from magneto.vision.image_task import Prediction
from magneto.vision_language import finetuning, question_answering
from magneto.vision_language.answers import (
    When,
    answer_scores,
    answerable,
    gather_targets,
    known_answers,
    question_accuracy,
    question_only_answers,
    read_answers,
    share_known,
)
from magneto.vision_language.config import QuestionAnsweringDataConfig
from magneto.vision_language.question_answering import (
    ANNOTATED_TWICE,
    DUPLICATES,
    EMPTY_QUESTIONS,
    UNANNOTATED,
    UNASKED,
    Questions,
    held_out_images,
    image_keys,
    kind_of,
    load_questions,
    read_split,
    vqa_files,
)
from magneto.vision_language.tables import LOST, MISSING
from tests.evaluating import measured, predicted
from tests.recorded_progress import RecordedProgress
from tests.shards import write_lines
from tests.unit.vision.image_files import write
from tests.unit.vision_language.folders import (
    COLOURS,
    annotated,
    image_file,
    png,
    write_split,
    write_vqa,
)
from tests.unit.vision_language.small_tasks import question_task


def load(source: str | Path, problems: DataProblems | None = None, **data: Any) -> Questions:
    config = QuestionAnsweringDataConfig(source=str(source), **data)
    return load_questions(config, problems or DataProblems())


def vqa(folder: Path, **data: Any) -> Questions:
    return load(folder, None, **{"least_answer_count": 1, **data})


def records(folder: Path, count: int = 12) -> list[dict[str, Any]]:
    """Two questions about each of some images, red and blue ones."""
    found: list[dict[str, Any]] = []
    for number in range(count):
        colour = ("red", "blue")[number % 2]
        write(folder / f"{number}.png", png(COLOURS[colour]))
        found += [{"image": f"{number}.png", "question": "What colour?", "answer": colour.title()},
                  {"image": f"{number}.png", "question": "Is it red?",
                   "answer": "yes" if colour == "red" else "no"}]  # fmt: skip
    return found


def test_a_plain_table(tmp_path: Path) -> None:
    """One answer counts as ten that agree, as it is written; images are held out whole."""
    names = {"image": "p", "question": "q", "answer": "a"}
    lines = [{names[key]: value for key, value in row.items()} for row in records(tmp_path)]
    columns = {f"{key}_column": name for key, name in names.items()}
    found = load(write_lines(tmp_path / "all.jsonl", lines), validation_fraction=0.3, **columns)
    assert found.answers == ["Blue", "Red", "no", "yes"] and found.answerable.all()
    assert len(found.train) + len(found.validation) == 24
    assert not {*image_keys(found.train)} & {*image_keys(found.validation)}
    for rows, targets in ((found.train, found.train_targets),
                          (found.validation, found.validation_targets)):  # fmt: skip
        assert len(rows) > 1 and (targets.toarray().max(1) == 1).all()
        both = zip(rows.values("majority"), rows.values("kind"), strict=True)
        for index, (answer, kind) in enumerate(both):
            red = rows.open(index).pixels()[0, 0, 0] > 200
            assert answer in (("Red", "yes") if red else ("Blue", "no"))
            assert kind == ("yes/no" if answer in ("yes", "no") else "other")


def test_a_list_of_answers_is_of_annotators(tmp_path: Path) -> None:
    """As VQA's ten: known answers are normalised; objects with "answer" are understood, too."""
    rows = records(tmp_path, 4)
    for row in rows:
        answer = row.pop("answer")
        row["answers"] = [answer] * 7 + [f"The {answer}"] * 3
        row["question_id"] = 100 + len(row["question"])
    rows[0]["answers"] = [{"answer": word} for word in rows[0]["answers"]]
    path = write_lines(tmp_path / "all.jsonl", rows)
    found = load(path, validation_source=str(path), answer_lookup="normalised")
    assert found.answers == ["red", "yes", "blue", "no"]
    assert found.train.values("answers")[0] == ("Red",) * 7 + ("The Red",) * 3
    assert found.train.values("majority")[0] == "Red"
    assert list(found.train.values("id")[:2]) == [112, 110]
    assert found.coverage == (pytest.approx(0.35), 1.0)


def test_odd_rows_of_a_table_are_counted(tmp_path: Path) -> None:
    rows = records(tmp_path)
    odd = [{**rows[0], "question": 7}, {**rows[0], "answer": ""}, {**rows[0], "answer": None},
           {**rows[0], "image": ""}, {**rows[0], "answer": [[{"answers": 1}]]},
           {**rows[0], "image": "gone.png"}, {**rows[1], "image_id": 99},
           {**rows[1], "image_id": 0}]  # fmt: skip
    problems = DataProblems()
    path = write_lines(tmp_path / "all.jsonl", [*rows[:1], odd[3], *rows[1:], *odd])
    found = load(path, problems, validation_source=str(path), validation_fraction=0.3)
    assert f"{path}, line 26: no question" in found.counts.describe()
    assert len(found.train) == 24 + 2 and len(found.validation) == 24 + 3
    assert found.train.values("image_id")[-3:] == ["11.png", "99", "0"]
    assert found.counts[MALFORMED] == 4 and found.counts[MISSING] == found.counts[LOST] == 1
    assert problems.describe() == "missing image: 1"


def test_vqa_is_split_by_images(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    found = vqa(tmp_path, validation_images=2)
    held = held_out_images(range(1001, 1007), 2, 0)
    names = {f"val2014/COCO_val2014_{image:012d}.jpg" for image in held}
    assert {*image_keys(found.validation)} == names and len(found.validation) == 4
    assert len(image_keys(found.train)) == 10 and len(found.train) == 20
    # Scores of other questions would be taken for those of the test split.
    with pytest.raises(ValueError, match=r"'test2015' needs VQA v2"):
        load("builtin:shapes", validation_split="test2015")


def test_questions_meet_their_annotations_and_images(tmp_path: Path) -> None:
    write_vqa(tmp_path, inner="annotations")
    found = vqa(tmp_path, validation_split="val2014")
    assert (len(found.train), len(found.validation)) == (12, 12)
    rows = found.validation
    first = rows.table[0]
    assert first["answers"] == ("blue",) * 7 + ("The blue",) * 3
    assert (first["id"], first["question"], first["majority"], first["kind"]) == (
        10010, "What colour is it?", "blue", "other",
    )  # fmt: skip
    assert rows.name(0) == str(image_file(tmp_path, "val2014", 1001))
    assert rows.open(0).pixels()[0, 0, 2] > 200 > rows.open(2).pixels()[0, 0, 2]


def test_images_elsewhere_and_missing(tmp_path: Path) -> None:
    write_vqa(tmp_path)
    (tmp_path / "images").mkdir()
    for name in ("train2014", "val2014"):
        (tmp_path / name).rename(tmp_path / "images" / name)
    with pytest.raises(
        ValueError, match=r"missing, such as .*COCO_train2014_0.*1\.jpg.*image_folder"
    ):
        vqa(tmp_path)
    found = vqa(tmp_path, image_folder=str(tmp_path / "images"), validation_split="val2014")
    assert not found.counts[LOST] and not found.counts[MISSING]


def test_odd_records_of_vqa_are_counted(tmp_path: Path) -> None:
    questions = [
        {"image_id": 1, "question": "a?", "question_id": 1},
        {"image_id": 1, "question": "b?", "question_id": 1},  # its id was there
        {"image_id": 1, "question": " ", "question_id": 2},  # no words
        {"image_id": "x", "question": "c?", "question_id": 3},
        {"image_id": float("inf"), "question": "c?", "question_id": 3},
        {"image_id": 1, "question": None, "question_id": 4},
        7,
        {"image_id": 2, "question": "d?", "question_id": 5},  # nobody answered
    ]
    annotations = [
        annotated(1, 1, ["x"] * 10, "x"), annotated(2, 1, ["y"], "y"),
        annotated(1, 1, ["z"] * 10, "z"),  # there was one
        annotated(9, 1, ["x"], "x"), {"question_id": 5, "answers": []}, {"question_id": 6}, "z",
    ]  # fmt: skip
    write_split(tmp_path, "train2014", questions, annotations)
    counts = Counts()
    found = read_split(vqa_files(str(tmp_path)), "train2014", counts)
    assert [(question, majority) for _, question, _, majority, *_ in found] == [
        ("a?", "x"), (" ", "y")
    ]  # fmt: skip
    expected = {DUPLICATES: 1, EMPTY_QUESTIONS: 1, MALFORMED: 7, UNANNOTATED: 1, UNASKED: 1,
                ANNOTATED_TWICE: 1}  # fmt: skip
    assert {kind: counts[kind] for kind in expected} == expected
    for path in tmp_path.glob("*.json"):
        packed = path.with_name(f"{path.name}.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert read_split(vqa_files(str(tmp_path)), "train2014", Counts()) == found


def test_held_out_images_are_those_of_the_published_rule() -> None:
    """The smallest digests: another order of the images, or more of them, keeps their ranks."""
    ids = range(1, 500)
    digest = {n: hashlib.blake2b(b"0:%d" % n, digest_size=8).hexdigest() for n in ids}
    chosen = held_out_images(ids, 5, 0)
    assert chosen == set(sorted(ids, key=digest.__getitem__)[:5])
    assert held_out_images(reversed(ids), 5, 0) == chosen != held_out_images(ids, 5, 1)


WHENS: tuple[When, When] = ("where_annotators_disagree", "always")


def test_whether_any_known_answer_is_right() -> None:
    """As trying them all one by one says, and raw spelling does not keep an answer from it."""
    known, draw = ["2", "dog", "two dogs", "a cat", "t-shirt"], random.Random(0)
    pool = ["two", "2", "couple", "Dog", "the dog", "dog", "2 dogs", "cat", "T-Shirt", "x", "dog\n"]
    asked = [["two"] * 6 + ["couple"] * 4, ["two"] * 10, ["2"] * 10, ["2"], [], ["x", "2"]]
    asked += [draw.choices(pool, k=draw.choice([1, 2, 3, 10])) for _ in range(500)]
    for when in WHENS:
        tried = [any(question_accuracy(one, pool, when) > 0 for one in known) for pool in asked]
        assert list(answerable(asked, known, when)) == tried
        assert tried[:6] == [True, when == "always", True, False, False, True]


def test_accuracy_by_type() -> None:
    answers = [("yes",) * 10, ("two",) * 10, ("dog",) * 2 + ("The cat",) * 8]
    types = ["yes/no", "number", "other"]
    found = answer_scores(answers, types, ["yes", "2", "dog"], "where_annotators_disagree")
    assert found == pytest.approx(
        {"accuracy": 1.6 / 3, "accuracy_number": 0, "accuracy_other": 0.6, "accuracy_yes_no": 1}
    )
    kinds = [*map(kind_of, ("no", "Yes.", "two", "2", "dog"))]
    assert kinds == ["yes/no", "yes/no", "number", "number", "other"]
    none = answer_scores(answers, types, [None, None, "cat"], "always")
    assert none["accuracy"] == pytest.approx(1 / 3)


def test_targets_by_how_many_agree() -> None:
    """By the raw look-up, as in the released code, "none" and "Two" are not "0" and "2"."""
    questions = [("a",) * 4 + ("b",) * 3 + ("c",) * 2 + ("d",), ("x",) * 10, ()]
    found = gather_targets(questions, ["d", "c", "b", "a"], "raw")
    assert np.allclose(found[[1, 0, 2]].toarray(), [[0] * 4, [0.3, 0.6, 0.9, 1], [0] * 4])
    spelt = ("none",) * 5 + ("2",) * 3 + ("two", "Two")
    for lookup, targets, share in (("raw", [0, 0.9], 0.3), ("normalised", [1, 1], 1.0)):
        found = gather_targets([spelt], ["0", "2"], lookup)  # type: ignore[arg-type]
        assert np.allclose(found.toarray(), targets)
        assert share_known([spelt], ["0", "2"], lookup) == share  # type: ignore[arg-type]
    assert share_known([spelt, ("x",) * 10], ["0", "2"], "normalised") == 0.5
    assert share_known([], ["0"], "raw") == 0
    assert known_answers(["Two", "red", "2", "blue", "red.", "red"], 2) == ["2", "red"]


def test_files_of_answers(tmp_path: Path) -> None:
    """A byte order mark is no part of an answer."""
    path = tmp_path / "answers"
    for text in ("red\nblue\n\n", '["red", "blue"]',
                 '{"answer": "red", "label": 0}\n{"answer": "blue", "label": 1}\n'):  # fmt: skip
        for encoding in ("utf-8", "utf-8-sig"):
            path.write_text(text, encoding=encoding)
            assert read_answers(str(path)) == ["red", "blue"]
    for text, message in (
        ("", "is not an answer list"), ("[", "is not an answer list"),
        ("red\nred\n", "has the answer 'red' twice"),
        ('{"answer": "red", "label": 1}', "labels are not 0, 1, 2"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_answers(str(path))
    with pytest.raises(FileNotFoundError, match=r"answer.*did you mean"):
        read_answers(str(tmp_path / "answer"))


def test_the_commonest_answer_to_the_same_words() -> None:
    """To words that were never asked: the commonest of all; of several, the first."""
    rows = [("a?", "no"), ("a?", "yes"), ("a?", "yes"), ("b?", "no"), ("b?", "maybe"),
            ("c?", "yes")]  # fmt: skip
    texts, answers = [text for text, _ in rows], ["maybe", "no", "yes"]
    targets = gather_targets([(answer,) * 10 for _, answer in rows], answers, "raw")
    found = question_only_answers(texts, targets, ["a?", "b?", "new?"])
    assert [answers[number] for number in found] == ["yes", "maybe", "yes"]


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
    assert all({*written} & {*task.answers} for written in held.values("answers"))
    model = task.build_model()
    found = measured(task, model)
    assert found["unknown"] == 0 and found["broken"] == 0
    answers = dict(task.given_answers(predicted(task, model)))
    right = [
        answers[number] == written
        for number, written in zip(held.values("id"), held.values("majority"), strict=True)
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
    annotations = [["two"] * 6 + ["couple"] * 4, ["two"] * 10]
    notes = [
        annotated(n, 1001, answers, "two") for n, answers in zip((1, 2), annotations, strict=True)
    ]
    write_split(tmp_path / "vqa", "val2014", asked, notes)
    task, progress = question_task(tmp_path, answers=str(tmp_path / "known.txt"),
                         validation_split="val2014"), RecordedProgress()  # fmt: skip
    task.prepare(progress)
    model = task.build_model()
    torch.nn.init.zeros_(model.head[-1].weight)
    model.head[-1].bias.data = torch.tensor([1.0, 0.0])  # "2", whatever it is asked
    found = measured(task, model)
    assert found["soft_score"] == 0 and found["accuracy"] == found["unknown"] == 0.5
    assert "1 validation question without a right answer" in progress.lines[0]
    assert task.baseline()["unknown"] == 0.5


def test_a_question_about_a_missing_image_has_no_answer(tmp_path: Path) -> None:
    """What was missing, and what the look-ups know, is said."""
    write_vqa(tmp_path)
    image_file(tmp_path, "train2014", 1).unlink()
    image_file(tmp_path, "val2014", 1003).unlink()
    task, progress = question_task(tmp_path, validation_split="val2014"), RecordedProgress()
    task.prepare(progress)
    assert f"2 {MISSING}" in progress.lines[0] and f"2 {LOST}" in progress.lines[0]
    assert "10 training questions, 12 validation questions, 4 answers" in progress.lines[0]
    assert "85.00% of the annotated answers, and 100.00% if answers" in progress.lines[0]
    given = task.given_answers(predicted(task, task.build_model()))
    assert {answer for number, answer in given if number in (10030, 10031)} == {""}


def test_the_baseline_reads_questions_alone(tmp_path: Path, monkeypatch: Any) -> None:
    """Of both questions either answer is as common: who sees no image is half right."""
    for module in (finetuning, question_answering):
        monkeypatch.setattr(module, "EVALUATION_BATCH", 5)
    task, known = question_task(tmp_path, validation_images=6), list[Any]()

    def answers(texts: Any, targets: Any, asked: Any) -> Any:
        known.append(targets)
        return question_only_answers(texts, targets, asked)

    name = "magneto.vision_language.question_answering.question_only_answers"
    monkeypatch.setattr(name, answers)
    found = task.baseline()
    assert len(known) == 1 and known[0] is task.splits.train_targets
    assert found["accuracy"] == found["soft_score"] == 0.5 and found["unknown"] == 0
    assert found.keys() == measured(task, task.build_model()).keys()
    asked = torch.cat([batch["targets"] for batch in task.validation_batches()])
    means = torch.tensor(task.splits.train_targets.toarray().mean(0)).float().expand_as(asked)
    loss = F.binary_cross_entropy(means, asked, reduction="sum")
    assert found["loss"] == pytest.approx(float(loss) / 12, rel=1e-5)
    assert task.baseline(1)["accuracy"] in (0.2, 0.4, 0.6, 0.8)  # of five questions


def assert_same_labels(predictions: Sequence[Prediction]) -> None:
    first, second = (dict(each.labels) for each in predictions)
    assert first == pytest.approx(second)


def test_what_is_left_out_of_the_input(tmp_path: Path) -> None:
    rows = torch.arange(4).numpy()
    task = question_task(tmp_path, input="question")
    batch = task.validation_batches().make(rows)
    assert not batch["images"].any() and len(batch["samples"].token_ids) > 40
    model, held = task.build_model().eval(), task.splits.validation
    red, blue = ((held.open(row), "is it?") for row in (0, 2))
    assert_same_labels(task.predict(model, [red, blue]))
    task = question_task(tmp_path, input="image")
    batch = task.validation_batches().make(rows)
    assert batch["images"].any() and len(batch["samples"].token_ids) == 8  # <s> and </s>
    assert_same_labels(task.predict(model, [red, (red[0], "what is it?")]))


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
        question_task(tmp_path, least_answer_count=None).prepare()  # 9 for VQA v2
    with pytest.raises(ValueError, match=r"answer list has 4 answers, but model.answers is 5"):
        question_task(tmp_path, {"answers": 5}).prepare()
    (tmp_path / "one.txt").write_text("yes\n")
    with pytest.raises(ValueError, match="list has 1 answers"):
        question_task(tmp_path, answers=str(tmp_path / "one.txt")).prepare()


def test_probabilities_of_answers_are_those_if_exactly_one_is_right(tmp_path: Path) -> None:
    task = question_task(tmp_path)
    logits = torch.tensor([[2.0, -1.0, 0.5]])
    found = task.shares(logits)[1]
    each = logits.sigmoid()[0].tolist()
    alone = [math.prod(p if i == j else 1 - p for j, p in enumerate(each)) for i in range(3)]
    assert found[0].tolist() == pytest.approx([p / sum(alone) for p in alone])
