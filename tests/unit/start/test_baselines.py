"""Simple models against their definitions, and what is said of data before training."""

import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from magneto.data.documents import DOCUMENTS
from magneto.data.problems import MALFORMED, Counts
from magneto.progress import SILENT
from magneto.recipe import load_recipe
from magneto.speech.data import KEPT, READ, TOO_LONG
from magneto.start import advice, baselines
from magneto.start.advice import badly_scaled, image_input, small_validation_set, steps_for
from magneto.start.baselines import (
    bag_of_words,
    colour_and_place,
    interpolated_nats,
    n_grams,
    pixel_regression,
    statement_alone,
)
from magneto.vision import segmentation
from tests.unit.vision.image_files import encoded, photo, write, write_pairs

UNSET = SimpleNamespace(image_size=None, patch_size=None)


class Part(dict):
    """Columns of a table by name."""

    values, columns = dict.__getitem__, property(dict.keys)

    def __len__(self) -> int:
        return len(next(iter(dict.values(self))))


def test_n_grams_are_witten_and_bells() -> None:
    draws = np.random.default_rng(0)
    train, asked, size = draws.integers(0, 5, 60), draws.integers(0, 5, 40), 5
    counts = {n: Counter(tuple(train[i : i + n]) for i in range(len(train) - n + 1))
              for n in (1, 2, 3)}  # fmt: skip

    def chance(words: tuple[int, ...]) -> float:
        order = len(words)
        if order == 1:
            return (counts[1][words] + 1) / (len(train) + size)
        shorter, history = chance(words[1:]), words[:-1]
        after = {gram[-1]: c for gram, c in counts[order].items() if gram[:-1] == history}
        # The last history of the text has nothing after it.
        total = sum(after.values())
        if not total:
            return shorter
        return (after.get(words[-1], 0) + len(after) * shorter) / (total + len(after))

    nats = -np.mean([math.log(chance(tuple(asked[max(0, i - 2) : i + 1]))) for i in range(40)])
    assert interpolated_nats(train, asked, size) == pytest.approx(nats)
    assert interpolated_nats(train, train, size) < interpolated_nats(train, train, size, 1)
    text = SimpleNamespace(train=train.tolist(), validation=asked.tolist())
    task = SimpleNamespace(text=text, vocabulary=lambda: size, summarise=lambda sums, _: sums)
    [(_, sums)] = n_grams(task)
    assert sums["loss"] / sums["count"] == pytest.approx(nats)


def test_numbers_of_texts_are_learned_from_training_alone() -> None:
    """Without two answers to learn, or two to compare, there is nothing to say."""
    words = [" ".join(["one", "two", "three", "four"][: 1 + n % 4]) for n in range(40)]
    train = Part(text=words, label=[n % 4 / 2 for n in range(40)])
    held = Part(text=words[:8], label=[-(n % 4) / 2 for n in range(8)])

    def scored(train: Part, held: Part, regression: bool = True) -> Any:
        texts = SimpleNamespace(train=train, validation={"": held})
        config = SimpleNamespace(regression=regression)
        return bag_of_words(SimpleNamespace(texts=texts, data_config=config))

    [(name, found)] = scored(train, held)
    assert name == "ridge regression on words" and found["spearman"] < -0.9
    assert scored(train, Part(text=["one"], label=[1])) == ()
    assert scored(Part(text=words, label=["a"] * 40), held, regression=False) == ()


def test_words_that_two_texts_share_are_what_pairs_are_judged_by(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    rows = ["text,text2,label"]
    for number in range(300):
        first, second = draws.permutation(40)[:6], draws.permutation(40)[:6]
        second = first[::-1] if number % 2 else second
        words = (" ".join(f"word{n}" for n in some) for some in (first, second))
        rows.append(f"{','.join(words)},{['other', 'same'][number % 2]}")
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    options = {"data.source": str(tmp_path / "rows.csv"), "data.pair_column": "text2"}
    task = load_recipe("text-classification/start", options).build_task()
    task.prepare()
    [(name, found)] = bag_of_words(task)
    assert name.endswith("of both texts") and found["accuracy"] > 0.95


@pytest.mark.parametrize("statements", [("red", "blue"), ("red on blue", "blue on red")])
def test_words_of_statements_are_learned_from_training_alone(statements: tuple[str, str]) -> None:
    """Single words count, and pairs of neighbours."""
    train = Part(statement=[*statements] * 9, truth=[True, False] * 9)
    held = Part(statement=train["statement"], truth=[False, True] * 9)
    task = SimpleNamespace(splits=SimpleNamespace(train=train, validation=held))
    assert statement_alone(task) == [("the statement's words alone", {"accuracy": 0.0})]


def test_pixels_are_learned_from_training_alone(tmp_path: Path) -> None:
    for split, shades in (("train", (0, 255)), ("validation", (255, 0))):
        for name, shade in zip("ab", shades, strict=True):
            for number in range(4):
                path = tmp_path / split / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("L", (8, 8), shade).save(path)
        for name in "ab":  # left out: a blank image would look like one of them
            (tmp_path / split / name / "3.png").write_bytes(b"no image")
    task = load_recipe("image-classification/start", {"data.source": str(tmp_path)}).build_task()
    task.prepare(SILENT)
    assert pixel_regression(task) == [("logistic regression on pixels", {"accuracy": 0.0})]


def test_a_broken_image_is_left_out_of_what_pixels_teach(tmp_path: Path) -> None:
    write_pairs(tmp_path, [(12, 16)] * 12)
    (tmp_path / "images" / "3.png").write_bytes(b"no image")
    changes = {"data.source": str(tmp_path), "model.classes": 5}
    [(_, found)] = colour_and_place(load_recipe("segmentation/start", changes).build_task())
    assert found["mean_iou"] > 0.2  # a stripe's brightness tells its class


def test_the_place_of_a_pixel_tells_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quarters of one colour, in images that are wide or tall, of which some pixels are read."""
    monkeypatch.setattr(baselines, "MAX_PIXELS_PER_IMAGE", 100)
    monkeypatch.setattr(segmentation, "read_pair", lambda split, number, masks: split[number])
    train, held, turned = list[Any](), list[Any](), list[Any]()
    for height, width in ((6, 24), (24, 6)) * 6:
        y, x = np.indices((height, width))
        image, mask = np.full((height, width, 3), 99, np.uint8), 2 * (2 * y // height)
        mask = (mask + 2 * x // width).astype(np.uint8)
        train.append((image, np.where(y == 0, 255, mask)))  # 255 is ignored
        held.append((image, np.where(x == 0, 255, mask)))
        turned.append((image, 3 - mask))
    for validation, least, most in ((held, 0.9, 1.0), (turned, 0.0, 0.1)):
        splits = SimpleNamespace(train=train, validation=validation)
        task = SimpleNamespace(splits=splits, masks=None, classes=4, names=[*"abcd"])
        [(_, found)] = colour_and_place(task)
        assert least <= found["mean_iou"] <= most


def images_of(folder: Path, side: int, mode: str = "L") -> Any:
    for number in range(2):
        path = folder / "ab"[number] / "1.png"
        path.parent.mkdir(parents=True)
        Image.new(mode, (side, side), number).save(path, compress_level=1)
    return load_recipe("image-classification/start", {"data.source": str(folder)}).build_task()


def test_steps_are_so_many_epochs_within_limits() -> None:
    found = [steps_for(count, 2.0, (500, 2000)) for count in (10, 3000, 10**6)]
    assert found == [500, 1500, 2000]


def test_numbers_far_from_units_and_few_examples_are_remarked_on() -> None:
    numbers = np.random.default_rng(0).normal(0, 1, 200)
    assert not badly_scaled(numbers) and not badly_scaled(3 + 2 * numbers)
    for far in (50 + numbers, 50 * numbers, numbers / 50):
        [line] = badly_scaled(far)
        assert f"{far.mean():.4g}" in line and f"{far.std():.4g}" in line
    assert not small_validation_set(200) and "up to 0.10" in small_validation_set(25)[0]


def test_texts_and_recordings_are_counted() -> None:
    def documents(split: str, counts: Counts | None = None) -> list[str]:
        if counts is not None:
            counts.update({DOCUMENTS: 3, MALFORMED: 2})
        return {"train": ["ab" * 100_000, "c" * 4800], "validation": ["d"]}[split]

    found = advice.running_text(SimpleNamespace(documents=documents))
    assert found.options == {"data.vocab_size": 1024}, "a token for 200 characters"
    assert found.facts[0] == ("documents", "2 for training, 1 for validation")
    assert found.facts[1:] == [("text", "204,800 characters for training, vocabulary 1,024"),
                               ("problems", "2 malformed records left out")]  # fmt: skip
    train = Part(seconds=np.array([1800.0, 5400.0, 10800.0]), text=["a b", "a", "c d a b b b"])
    counts = {"train": Counts({KEPT: 3, READ: 4, TOO_LONG: 1})}
    speech = SimpleNamespace(splits=SimpleNamespace(train=train, validation=[1, 2], counts=counts))
    assert advice.recordings(SimpleNamespace(speech=speech)).facts == [
        ("recordings", "3 for training, 2 for validation"),
        ("sound", "5.00 hours for training, 5400.0 s (median), 10800.0 s at most"),
        ("words", "2 words (median), 6 at most; 4 distinct"),
        ("problems", "1 too long"),
    ]
    text = SimpleNamespace(
        directions=[("en", "de"), ("de", "en")], describe=lambda name: [name, "y"]
    )
    task: Any = SimpleNamespace(text=text, data_config=SimpleNamespace(source="x"))
    assert advice.parallel_text(task).facts == [
        ("directions", "en to de, de to en"), ("lines", "x; y")]  # fmt: skip
    train = Part(text=["aaaa bb"] * 2000, pair=["d" * 100] * 2000, label=[100, 300] * 1000)
    texts = SimpleNamespace(train=train, validation={"a": "x" * 150, "b": "y"}, counts=Counts())
    for regression, fact, remark in (
        (True, ("numbers", "100 to 300, 200 on average, standard deviation 100"), "subtract 200 "),
        (False, ("classes", "2: 100 1,000, 300 1,000"), "with 151 validation examples"),
    ):
        config = SimpleNamespace(regression=regression)
        found = advice.labelled_texts(SimpleNamespace(texts=texts, data_config=config))
        # 107 characters, 2.5 in a token, are 42 tokens and 8 more, rounded up to a multiple of 8.
        assert found.facts == [("texts", "2,000 for training, 151 for validation"), fact, (
            "length", "2 words (median), 2 at most; up to 56 tokens, vocabulary 4,096"),
        ]  # fmt: skip
        assert found.options == {
            "data.max_length": 56, "data.vocab_size": 4096, "training.steps": 1000}  # fmt: skip
        assert found.remarks[0] == advice.FEW_PAIRS and remark in found.remarks[1]
    classes = advice.class_counts("aaabbcdefggh")
    assert classes == ("classes", "8: a 3, b 2, g 2, c 1, d 1, e 1, ... h 1")


def test_the_vocabulary_of_captions_grows_with_their_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = advice.DataSummary([])
    monkeypatch.setattr(advice, "image_input", lambda train, config: seen)
    train = Part(captions=[["ab" * 50, "c" * 100]] * 1024)
    splits = SimpleNamespace(train=train, validation=[1], counts=Counts())
    task = SimpleNamespace(splits=splits, model_config=SimpleNamespace(longest_text=64))
    found = advice.images_with_words("captions", "captions")(task)
    assert found.options["data.vocab_size"] == 1024, "a token for 200 characters"


def test_images_get_the_sizes_of_their_task(tmp_path: Path) -> None:
    splits = images_of(tmp_path / "grey", 8).splits
    task: Any = SimpleNamespace(splits=splits, classes=5, model_config=UNSET)
    assert advice.plain_images(task).options["model.max_length"] == 16 + 1
    options = advice.masked_images(task).options
    assert (options["model.classes"], options["model.stride"]) == (5, 8)
    assert "data.augmentation.flip" not in advice.labelled_images(task).options
    coloured = images_of(tmp_path / "coloured", 200, "RGB")
    found = advice.labelled_images(coloured)
    assert found.options["data.augmentation.flip"] == 0.5
    assert found.options["training.steps"] == 500 and found.facts[1][0] == "classes"
    resized, few = found.remarks
    assert "--model.image_size 128 --model.patch_size 16 keeps" in resized
    assert few.startswith("with 1 validation examples")
    for number in range(9):
        write(tmp_path / f"{number}.png", encoded(photo(number, 8, 12 + number % 2)))
    rows = [f"{number}.png,{'wordy ' * 6}{number}" for number in range(9)]
    (tmp_path / "rows.csv").write_text("\n".join(["image,text", *rows]))
    source = {"data.source": str(tmp_path / "rows.csv")}
    task = load_recipe("image-captioning/start", source).build_task()
    found = advice.GUIDES["image-captioning"].summarise(task)
    assert found.facts == [
        ("rows", "8 for training, 1 for validation"),
        ("size", "12 x 8 to 13 x 8; read as 8 x 8 in 16 patches"),
        ("captions", "7 words (median), 7 at most"),
    ]
    # 37 characters, two in a token, are 18 tokens and 8 more, rounded up to a multiple of 8.
    assert [found.options[f"model.{name}"] for name in ("max_length", "channels")] == [32, 3]


@pytest.mark.parametrize(
    ("side", "given", "expected"),
    [
        (8, UNSET, (8, 2, 16)), (28, UNSET, (28, 4, 49)), (1, UNSET, (1, 1, 1)),
        (16, SimpleNamespace(image_size=None, patch_size=8), (16, 8, 4)),
        (16, SimpleNamespace(image_size=64, patch_size=None), (64, 8, 64)),
    ],
)  # fmt: skip
def test_small_images_are_read_as_they_are_or_as_is_given(
    tmp_path: Path, side: int, given: Any, expected: tuple[int, int, int]
) -> None:
    task = images_of(tmp_path, side)
    options = image_input(task.splits.train, given).options
    assert tuple(options.values())[:3] == expected


def test_huge_images_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    task = images_of(tmp_path, 6000)
    with pytest.raises(ValueError, match=r"6000 x 6000 pixels.*Shrink"):
        image_input(task.splits.train, UNSET)
