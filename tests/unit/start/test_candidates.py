"""What data says it is: each layout and each kind of columns, made small."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from magneto.start.candidates import candidates

WORDS = ["a cat sat", "the dog ran", "no bird flew", "we saw two fish", "it rains now", "I slept"]


def images(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 9, 3), number, np.uint8)).save(path)


def table(path: Path, *columns: str, separator: str = ",") -> Path:
    """Write rows whose cells are of the kind that the column's name begins with."""
    cells: dict[str, Callable[[int], str]] = {
        "image": lambda n: f"{n}.png", "mask": lambda n: f"m{n}.png",
        "audio": lambda n: f"{n}.wav", "left": lambda n: f"{n}.jpg",
        "right": lambda n: f"r{n}.jpg", "label": lambda n: "ab"[n % 2],
        "truth": lambda n: ["true", "false"][n % 2], "score": lambda n: f"{n * 0.37:.2f}",
        "answer": lambda n: ["yes", "no"][n % 2], "age": lambda n: str(n), "id": lambda n: str(n),
        "dx": lambda n: "cd"[n % 2], "dx_type": lambda n: "ef"[n % 2],
        "class": lambda n: "", "grade": lambda n: str(n // 6),
        "price": lambda n: f"{n * 7 % 12 * 0.37:.2f}",
    }  # fmt: skip
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(columns)
        for n in range(12):
            writer.writerow([cells.get(c, lambda n: f"{WORDS[n % 6]} {n}")(n) for c in columns])
    return path


def tasks(source: Path) -> list[str]:
    return [each.task for each in candidates(str(source))]


@pytest.mark.parametrize(("columns", "expected"), [
    (["image", "label"], ["image-classification"]),
    (["image"], ["image-modelling"]),
    (["image", "class"], ["image-modelling"]),  # an empty column
    (["image", "mask"], ["segmentation"]),
    (["image", "question", "answer"], ["visual-question-answering"]),
    (["left", "right", "statement", "truth"], ["visual-reasoning"]),
    (["image", "sentence", "truth"], ["visual-question-answering"]),
    (["image", "caption"], ["image-captioning", "image-text-retrieval"]),
    (["audio", "transcript"], ["transducer"]),
    (["text", "label"], ["text-classification"]),
    (["premise", "hypothesis", "label"], ["text-classification"]),
    (["en", "de"], ["translation"]),
    (["English", "German"], ["translation"]),
    (["source", "target"], ["translation"]),
    (["english", "translation"], ["causal-lm", "masked-lm"]),
    (["prompt", "target"], ["causal-lm", "masked-lm"]),
    (["label", "text", "dx", "dx_type"], ["text-classification"]),
    (["text"], ["causal-lm", "masked-lm"]),
    # Rows in the order of their classes
    (["text", "grade"], ["text-classification"]),
    (["image", "grade"], ["image-classification"]),
    # Which column is the label?
    (["text", "truth", "answer"], ["text-classification", "causal-lm", "masked-lm"]),
])  # fmt: skip
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_columns(tmp_path: Path, columns: list[str], expected: list[str], ending: str) -> None:
    path = table(tmp_path / "rows.csv", *columns)
    if ending == "jsonl":
        with path.open(newline="", encoding="utf-8") as file:
            records = [json.dumps(record) for record in csv.DictReader(file)]
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(records), encoding="utf-8")
    assert tasks(path) == expected


def test_single_words_that_repeat_are_classes_first_and_phrases_captions(tmp_path: Path) -> None:
    path, captions = tmp_path / "rows.csv", ["image-captioning", "image-text-retrieval"]
    words = table(path, "image", "answer").read_text().replace("answer", "caption")
    path.write_text(words)
    assert tasks(path) == ["image-classification", *captions]
    path.write_text(words.replace("yes", "a red disc").replace("no", "a blue square"))
    assert tasks(path) == [*captions, "image-classification"]


def test_options_that_the_reader_must_be_told(tmp_path: Path) -> None:
    def options(*columns: str) -> dict[str, str]:
        [found] = candidates(str(table(tmp_path / "rows.csv", *columns)))
        return dict(found.options)

    assert options("question", "score") == {
        "data.text_column": "question", "data.label_column": "score",
        "data.target": "number"}  # fmt: skip
    assert options("review", "label") == {"data.text_column": "review"}
    assert options("text", "score") == {"data.label_column": "score", "data.target": "number"}
    assert options("text", "label", "id") == {}
    for columns in (("text", "price", "dx"), ("dx", "text", "price"), ("text", "dx", "price")):
        assert options(*columns) == {"data.label_column": "dx"}, "classes before numbers"
    assert options("text", "price") == {"data.label_column": "price", "data.target": "number"}
    assert options("sentence1", "sentence2", "label") == {
        "data.text_column": "sentence1", "data.pair_column": "sentence2"}  # fmt: skip
    assert options("sentence1", "sentence2", "dx", "score") == {
        "data.text_column": "sentence1", "data.pair_column": "sentence2",
        "data.label_column": "score", "data.target": "number"}  # fmt: skip
    assert options("question", "sentence", "label") == {
        "data.text_column": "question", "data.pair_column": "sentence"}  # fmt: skip
    rows = [{"translation": {"de": f"{n} Hunde", "en": f"{n} dogs"}} for n in range(9)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    [found] = candidates(str(tmp_path / "rows.jsonl"))
    assert (found.task, found.reason) == ("translation", "lines in de and en")
    [found] = candidates(str(table(tmp_path / "train.tsv", "a", "b")), {"data.glue": "cola"})
    assert found.task == "text-classification"
    assert options("text", "text2", "label") == {
        "data.text_column": "text", "data.pair_column": "text2"}  # fmt: skip
    (found, _) = candidates(str(table(tmp_path / "rows.csv", "instruction", "response")))
    assert "response not read; to train on several" in found.reason
    assert options("fr", "de") == {"data.pivot_language": "fr"}
    assert options("id", "en", "de") == {"data.languages": "en,de"}
    assert options("German", "English") == {
        "data.languages": "German,English", "data.pivot_language": "English"}  # fmt: skip
    path = table(tmp_path / "rows.csv", "image", "label")
    [found] = candidates(str(path), {"data.label_column": ""})  # no column is the label
    assert found.task == "image-modelling"


def test_columns_that_are_no_text_and_no_label(tmp_path: Path) -> None:
    """Row numbers, dates and constants are left out; of several texts the longest is read."""
    path = tmp_path / "tickets.csv"
    rows = [f"{n},2024-01-{n % 28 + 1:02}T10:00,T-{n * 7},{WORDS[n % 6]} {n},"
            f"{WORDS[n % 6]} {n} for long,en,{'ab'[n % 2]},{n % 3}" for n in range(40)]  # fmt: skip
    header = "Nummer,Datum,Code,Betreff,Nachricht,Sprache,Klasse,Stufe"
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    first, *others = candidates(str(path))
    assert (first.task, first.options) == ("text-classification", {
        "data.text_column": "Betreff", "data.pair_column": "Nachricht",
        "data.label_column": "Klasse"})  # fmt: skip
    read = "texts in Betreff and Nachricht, labels in Klasse (or --data.label_column Stufe)"
    assert first.reason == read
    assert [each.task for each in others] == ["causal-lm", "masked-lm"]
    [chosen] = candidates(str(path), {"data.label_column": "Stufe", "data.text_column": "Betreff"})
    assert chosen.reason == "texts in Betreff, labels in Stufe"
    with pytest.raises(ValueError, match=r"no column 'Stuffe'.*Stufe"):
        candidates(str(path), {"data.label_column": "Stuffe"})
    path.write_text(path.read_text().replace("Code", "Note").replace("T-", "see no "))
    assert candidates(str(path))[0].options["data.text_column"] == "Nachricht"


def test_folders(tmp_path: Path) -> None:
    images(tmp_path / "classes", "cat/1.png", "dog/2.png")
    images(tmp_path / "split", "train/cat/1.png", "train/dog/2.png", "test/cat/3.png")
    images(tmp_path / "flat", "1.png", "2.png")
    images(tmp_path / "masked", "images/1.png", "masks/1.png")
    images(tmp_path / "inside", "images/cat/1.png", "other/dog/2.png")
    images(tmp_path / "coco", "train2017/1.png", "val2017/2.png")
    images(tmp_path / "years", "train2017/1.png", "val2017/2.png")
    images(tmp_path / "vehicles", "train/1.png", "bus/1.png")
    images(tmp_path / "voc", "JPEGImages/1.jpg", "SegmentationClass/1.png")
    images(tmp_path / "inner", "train/images/1.png", "train/masks/1.png")
    images(tmp_path / "cities", "leftImg8bit/train/a/1.png", "gtFine/train/a/1_labelIds.png")
    images(tmp_path / "food", "images/tea/1.png", "images/pie/1.png")
    images(tmp_path / "nlvr2", "dev/dev-1-0-img0.png")
    images(tmp_path / "seen", "train/1.png", "train_labels/1.png")
    for name in (
        "text/book.txt", "books/austen/1.txt", "books/dickens/1.txt", "lines/train.en",
        "lines/train.de", "timit/SA1.WAV", "timit/SA1.TXT",
        "kaldi/wav.scp", "libri/84/1/84-1.trans.txt", "vqa/v2_mscoco_train2014_annotations.json",
        "karpathy/dataset_coco.json", "wiki/wiki.train.tokens", "speech/1.wav", "speech/1.txt",
        "voice/wavs/1.wav",
        *(f"reviews/train/{['good', 'bad'][number % 2]}/{number}.txt" for number in range(40)),
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("words\nmore\n", encoding="utf-8")
    (tmp_path / "voice" / "metadata.csv").write_text("1|Dr. Who|Doctor Who\n", encoding="utf-8")
    (tmp_path / "classes" / "dataset_infos.json").write_text("{}", encoding="utf-8")
    (tmp_path / "coco" / "captions_val2017.json").write_text("{}", encoding="utf-8")
    statement = json.dumps({"sentence": "Dogs.", "identifier": "train-1-0-0", "label": "True"})
    (tmp_path / "nlvr2" / "train.json").write_text(statement, encoding="utf-8")
    for name in ("vqa/v2_mscoco_train2014_annotations.json", "karpathy/dataset_coco.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    for folder in ("tables", "hub/train"):
        (tmp_path / folder).mkdir(parents=True)
    images(tmp_path / "hub" / "train", *(f"{n}.png" for n in range(12)))
    (tmp_path / "hub" / "train" / "metadata.csv").write_text(
        "\n".join(["file_name,text", *(f"{n}.png,{WORDS[n % 6]} {n}" for n in range(12))])
    )
    table(tmp_path / "tables" / "train.csv", "premise", "hypothesis", "label")
    expected = {
        "kaldi": "transducer", "libri": "transducer", "vqa": "visual-question-answering",
        "karpathy": "image-captioning", "hub": "image-captioning", "tables": "text-classification",
        "coco": "image-captioning", "years": "image-modelling", "voc": "segmentation",
        "vehicles": "image-classification",
        "voice": "transducer", "classes": "image-classification", "split": "image-classification",
        "flat": "image-modelling", "masked": "segmentation", "text": "causal-lm",
        "food": "image-classification", "nlvr2": "visual-reasoning", "wiki": "causal-lm",
        "timit": "transducer", "inside": "image-classification", "inner": "segmentation",
        "cities": "segmentation",
        "reviews": "text-classification", "books": "causal-lm", "seen": "segmentation",
        "lines": "translation", "lines/train": "translation", "speech": "transducer",
    }  # fmt: skip
    assert {name: tasks(tmp_path / name)[0] for name in expected} == expected
    assert "text-classification" in tasks(tmp_path / "books")
    options = candidates(str(tmp_path / "food"))[0].options
    assert options == {"data.source": str(tmp_path / "food" / "images")}
    rows = [f"{n % 9}.jpg| {n % 5}| A dog, {n} cats ." for n in range(30)]
    results = tmp_path / "results.csv"
    results.write_text("\n".join(["image_name| comment_number| comment", *rows]), encoding="utf-8")
    assert tasks(results)[0] == "image-captioning"  # Flickr30k's table


def test_a_table_in_a_folder_of_images_is_what_is_read(tmp_path: Path) -> None:
    images(tmp_path, *(f"pictures/{n}.png" for n in range(12)))
    rows = [f"{n},pictures/{n}.png,{'ab'[n % 2]}" for n in range(12)]
    index = tmp_path / "index.csv"
    index.write_text("\n".join(["id,file,diagnosis", *rows]), encoding="utf-8")
    [found] = candidates(str(tmp_path))
    assert found.task == "image-classification"
    assert found.options == {"data.source": str(index), "data.label_column": "diagnosis"}
    (tmp_path / "other.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    assert "index.csv, one of 2 tables" in candidates(str(tmp_path))[0].reason
    (tmp_path / "other.csv").unlink()
    index.write_text("\n".join(["id,grade", *(f"{n},{'ab'[n % 2]}" for n in range(12))]))
    assert candidates(str(tmp_path))[0].options == {
        "data.source": str(index), "data.image_column": "id",
        "data.label_column": "grade"}  # fmt: skip
    index.write_text("note\nthese are pictures\n", encoding="utf-8")
    [found] = candidates(str(tmp_path))
    assert found.reason == "12 images without labels (index.csv has no column of image files)"
    (tmp_path / "captions.txt").write_text("image,caption\na.png,a dog\n")
    [found] = candidates(str(tmp_path))
    assert "rename it to captions.csv" in found.reason


def test_tables_of_splits_in_a_folder(tmp_path: Path) -> None:
    """SNLI's tables are snli_1.0_train.jsonl and so on; the first one by name is dev."""
    for split in ("dev", "test", "train"):
        table(tmp_path / f"snli_{split}.csv", "premise", "hypothesis", "label")
    [found] = candidates(str(tmp_path))
    paths = {"data.source": "snli_train.csv", "data.validation_source": "snli_dev.csv"}
    assert {name: found.options[name] for name in paths} == {
        name: str(tmp_path / path) for name, path in paths.items()}  # fmt: skip
    (tmp_path / "c4").mkdir()
    for name in ("c4-train.0", "c4-train.1", "c4-validation.0"):
        table(tmp_path / "c4" / f"{name}.csv", "text")
    assert candidates(str(tmp_path / "c4"))[0].options == {}  # the folder is read


def test_recordings_as_bytes_in_a_column_of_any_name(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"speech": [b"RIFF....WAVE"] * 9, "text": [f"a {n}" for n in range(9)]}
    datasets.Dataset.from_dict(rows).to_parquet(str(tmp_path / "a.parquet"))
    assert tasks(tmp_path / "a.parquet") == ["transducer"]


def test_lines_without_a_blank_one_are_documents(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    for text, expected in (("one\ntwo\n", {"data.document": "line"}), ("one\n\ntwo\n", {})):
        path.write_text(text, encoding="utf-8")
        assert candidates(str(path))[0].options == expected


def test_what_no_task_reads_is_one_line(tmp_path: Path) -> None:
    scored = table(tmp_path / "scored.csv", "image", "score")
    scored.write_text(scored.read_text().replace("score", "label", 1))
    headerless = tmp_path / "bare.tsv"
    headerless.write_text("".join(f"{'word ' * 12}{n}\t{'yn'[n % 2]}\n" for n in range(20)))
    (tmp_path / "sounds").mkdir()
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"messages": [{"role": "user"}]}\n' * 3)
    several = tmp_path / "several.jsonl"
    rows = [{"text": f"word {n}", "labels": ["a", "b"][: n % 3]} for n in range(2, 20)]
    several.write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "sounds" / "1.wav").write_bytes(b"RIFF")
    (tmp_path / "wrapped.json").write_text('{"data": [{"text": "one"}]}')
    (tmp_path / "header.csv").write_text("text,label\n")
    (tmp_path / "pairs.tsv").write_text("".join(f"Go {n}.\tGeh {n}.\n" for n in range(20)))
    (tmp_path / "web.tsv").write_text("caption\turl\na dog\thttps://a.com/1.jpg\n" * 2)
    (tmp_path / "deu.txt").write_text("Go.\tGeh.\nHi.\tHallo.\n")
    for name in ("anki", "feelings"):
        (tmp_path / name).mkdir()
    feelings = "".join(f"I slept, {n} times;joy\n" for n in range(20))
    (tmp_path / "feelings" / "train.txt").write_text(feelings)
    (tmp_path / "anki" / "deu.txt").write_text("Go.\tGeh.\tby X\nHi.\tHallo.\tby Y\n")
    (tmp_path / "empty.csv").write_text("")
    ids = "".join(f"{n * n + 1}\tGo {n}.\t{n * 7}\tGeh {n}.\n" for n in range(20))
    (tmp_path / "tatoeba.tsv").write_text(ids)
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "a.zip").write_bytes(b"")
    for source, message in (
        (table(tmp_path / "numbers.csv", "age", "score"), "'A new task'"),
        (chats, r"'messages' \(list\)\. Write the text in one column"),
        (scored, "fractional numbers"), (headerless, "Add a header line such as: text<TAB>label"),
        (tmp_path / "sounds", "no transcripts: .*audio and text"),
        (tmp_path / "number.csv", "numbers"),
        (tmp_path / "wrapped.json", "one record, with a list in 'data'. Write a list of records"),
        (tmp_path / "header.csv", "header.csv has no rows"),
        (tmp_path / "pairs.tsv", "first line is not a header .*: text<TAB>text2"),
        (tmp_path / "web.tsv", "URLs of images, not files"),
        (tmp_path / "deu.txt", r"Rename it to deu\.tsv"), (tmp_path / "empty.csv", "is empty"),
        (tmp_path / "anki", r"has 3 columns. Rename it to deu\.tsv"),
        (tmp_path / "feelings", r"has 2 columns. Rename it to train\.csv.*: text;label"),
        (tmp_path / "tatoeba.tsv", "such as: column1<TAB>text<TAB>column3<TAB>text2"),
        (tmp_path / "packed", "no images, tables or texts .* files that end in .zip"),
        (several, r"'labels' has lists of classes, such as \['a', 'b'\].*one class in each row"),
    ):  # fmt: skip
        with pytest.raises((FileNotFoundError, ValueError), match=message):
            candidates(str(source))
