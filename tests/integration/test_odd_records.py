"""Odd records of every field: from a recipe and a source to what is said, trained on and scored.

Nothing here names a reader: whatever reads these sources counts what is odd, names the first, and
goes on. Where a run's batches are drawn, another example takes the place of one that can't be read.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magneto.recipe import load_recipe
from tests.recorded_progress import RecordedProgress
from tests.shards import write_lines
from tests.unit.speech.wavs import write as write_wav
from tests.unit.vision.image_files import encoded, photo, write, write_photos
from tests.unit.vision_language.folders import write_vqa

pytest.importorskip("PIL.Image")

LONG = "n" * 5000
DEEP = "[" * 100_000
# No path that there is.
NOWHERE = ["~nobody-here/x", LONG, "a\0b", "../" * 2000]
MALFORMED = "malformed records left out"


def task_of(name: str, source: Path | str, **changes: Any) -> tuple[Any, str]:
    """Read a source as a recipe's task does; return the task and what is said."""
    given = {f"data.{key}": value for key, value in changes.items() if not key.startswith("model_")}
    model = {f"model.{key[6:]}": v for key, v in changes.items() if key.startswith("model_")}
    recipe = load_recipe(name, {"data.source": str(source), **given, **model})
    built, progress = recipe.build_task(), RecordedProgress()
    built.prepare(progress)
    return built, "\n".join(progress.lines)


# Of each: how many good records come before the odd ones, these, good ones, and options.
TEXTS: list[tuple[str, int, list[Any], Callable[[int], dict], dict[str, Any]]] = [
    ("causal-lm/tiny", 0,
     [DEEP, '{"text": 1e999}', '{"text": ' + "9" * 5000 + "}", "{", "null", '{"text": null}'],
     lambda n: {"text": f"a sentence that is number {n}"},
     {"tokenizer": "bytes", "max_length": 16}),
    ("text-classification/tiny", 1,
     [DEEP, {"text": 5, "label": "a"}, {"text": [], "label": "a"}, "7"],
     lambda n: {"text": f"{n} is a number", "label": "ab"[n % 2]}, {}),
    ("translation/tiny", 0,
     [DEEP, {"en": "alone"}, {"en": 1e999, "de": "x"}],
     lambda n: {"en": f"number {n} is good", "de": f"Zahl {n} ist gut"},
     {"tokenizer": "bytes", "languages": None}),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "before", "odd", "good", "changes"), TEXTS)
def test_texts(
    recipe: str, before: int, odd: list[Any], good: Callable, changes: dict, tmp_path: Path
) -> None:
    records = [*map(good, range(before)), *odd, *map(good, range(200))]
    source = write_lines(tmp_path / "a.jsonl", records)
    _, message = task_of(recipe, source, **changes)
    assert f"{len(odd)} {MALFORMED} [{source}, line {before + 1}: nested too deeply; " in message


def examples_of(task: Any) -> int:
    return task.train_stream(1, 0).examples


def read_a_batch(task: Any, examples: int = 4) -> Any:
    return task.train_stream(examples, 0).batch(0)[0]


def test_images_of_a_table(tmp_path: Path) -> None:
    write_photos(tmp_path, 20)
    os.mkfifo(tmp_path / "fifo.png")  # to open it would wait for ever
    rows = [f"{n}.png,{'ab'[n % 2]}" for n in range(20)]
    rows += [f"{name.replace(chr(0), '')},a" for name in NOWHERE] + ["fifo.png,a", "1.png"]
    rows += [f"1.png,{'9' * 5000}"]
    source = tmp_path / "train.csv"
    source.write_text("image,label\n" + "\n".join(rows) + "\n")
    task, message = task_of("image-classification/tiny", source, model_classes=3)
    assert f"1 malformed record left out [{source}, row 27: 1 cells instead of 2]" in message
    batch = read_a_batch(task, examples_of(task))
    lost = sum(int(found["broken"].sum()) for found in task.validation_batches())
    assert batch["broken"].sum() + lost == 5 and batch["broken"].sum() > 0
    assert batch["images"].abs().sum((1, 2, 3)).min() > 0  # others stand in their place
    assert task.problems.describe() == "broken image: 5"


def test_folders_that_lead_back_are_walked_once(tmp_path: Path) -> None:
    for number in range(40):
        write(tmp_path / "ab"[number % 2] / f"{number}.png", encoded(photo(number, 8, 8)))
    for name in "abcdefgh":
        (tmp_path / "a" / f"back{name}").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "a" / "round").symlink_to(tmp_path / "a" / "round")
    os.mkfifo(tmp_path / "b" / "fifo.png")
    task, message = task_of("image-classification/tiny", tmp_path, model_classes=2)
    assert "2 pipes, devices, broken links and unreadable folders left out [" in message
    assert f"{tmp_path / 'b' / 'fifo.png'}: not a regular file" in message
    assert examples_of(task) + sum(len(b["labels"]) for b in task.validation_batches()) == 40


def speech_source(folder: Path, *records: Any) -> Path:
    pytest.importorskip("soundfile", reason="soundfile is not installed")
    for number in range(8):
        write_wav(folder / f"{number}.wav", 0.5 + number / 20)
    good = [{"audio": f"{n}.wav", "text": f"said {n}"} for n in range(8)]
    return write_lines(folder / "train.jsonl", [*good, *records])


def test_recordings(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.wav")
    odd = {"text": "x", "audio": "1.wav"}
    source = speech_source(
        tmp_path, DEEP, '{"audio": "1.wav", "text": "x", "channel": 1e999}',
        *({**odd, "channel": value} for value in (-1, 1.9, True, "left")),
        {**odd, "start": 0, "stop": 1e308}, {**odd, "start": -1, "stop": 1}, {**odd, "stop": True},
        '{"audio": "1.wav", "text": "x", "stop": 1e999}', {**odd, "start": 2, "stop": 2},
        {"text": "no sound"}, {**odd, "audio": 5},
        *({**odd, "audio": name} for name in (*NOWHERE, "fifo.wav")),
        {**odd, "channel": 1}, {**odd, "channel": "0"},
    )  # fmt: skip
    changes = {"validation_source": str(speech_source(tmp_path / "held")), "cmvn": "none"}
    task, message = task_of("transducer/tiny", source, **changes)
    assert f"11 {MALFORMED} [{source}, line 9: nested too deeply; {source}, line 10: " in message
    assert "channel must be a whole number, 0 or more, not inf" in message
    assert "5 missing recordings" in message
    assert "1 recording without the requested channel" in message
    for piece in read_a_batch(task, 6):
        assert piece.frames > 0


def vqa(folder: Path, ids: list[Any]) -> Path:
    """Write a small VQA v2 whose training questions have odd ids of their images at the end."""
    write_vqa(folder, images=4, inner=".")
    for kind, key in (("OpenEnded_mscoco_train2014_questions", "questions"),
                      ("mscoco_train2014_annotations", "annotations")):  # fmt: skip
        path = folder / f"v2_{kind}.json"
        known = json.loads(path.read_text())[key]
        more = [{**known[0], "question_id": n, "image_id": image} for n, image in enumerate(ids)]
        path.write_text(json.dumps({key: known + more}))
    return folder


def test_questions_whose_image_is_no_whole_number(tmp_path: Path) -> None:
    odd = [1.9, 1.0, "1", True, None, 1e300, float("inf"), [1], -1, 10**30]
    source = vqa(tmp_path, odd[:-2])
    changes = {"validation_split": "val2014", "least_answer_count": 1, "tokenizer": "bytes"}
    task, message = task_of("visual-question-answering/tiny", source, **changes)
    name = source / "v2_OpenEnded_mscoco_train2014_questions.json"
    assert (
        f"8 {MALFORMED} [{name}, question 9: image_id must be a whole number, 0 or more, not 1.9; "
        in message
    )
    assert examples_of(task) == 8


def test_images_with_texts(tmp_path: Path) -> None:
    write_photos(tmp_path, 30)
    good = [{"image": f"{n}.png", "caption": f"number {n}"} for n in range(30)]
    names = [{"image": name, "caption": "x"} for name in NOWHERE]
    odd = [DEEP, *names, {"image": 1e999, "caption": "x"}]
    source = write_lines(tmp_path / "train.jsonl", [good[0], *odd, *good[1:]])
    task, message = task_of("image-captioning/tiny", source, tokenizer="bytes")
    assert f"1 malformed record left out [{source}, line 2: nested too deeply]" in message
    assert "1 record left out because of a missing image [" in message
    assert "4 training rows left out because of a missing image" in message
    assert read_a_batch(task)["broken"].sum() == 0


@pytest.mark.parametrize("recipe", [
    "causal-lm/tiny", "text-classification/tiny", "translation/tiny", "image-classification/tiny",
    "segmentation/tiny", "transducer/tiny", "visual-question-answering/tiny",
    "visual-reasoning/tiny", "image-captioning/tiny",
])  # fmt: skip
def test_a_source_that_can_be_no_path_is_one_line(tmp_path: Path, recipe: str) -> None:
    for name in ("~nobody-here/x", *(f"{tmp_path}/{odd}" for odd in (LONG, f"{LONG}/x", "a\0b"))):
        with pytest.raises((ValueError, OSError), match=r"^(?!.*Errno)") as caught:
            task_of(recipe, name)
        assert "\n" not in str(caught.value)
