"""Tables from every kind of source, of any field."""

import gzip
import json
from pathlib import Path

import pytest

from magneto.config import ConfigError
from magneto.data import files
from magneto.data.documents import read_documents
from magneto.data.files import stream_records
from magneto.data.formats import (
    COCO,
    UNREAD_WORDS,
    layout_files,
    media_column,
    read_file,
    read_source,
)
from magneto.data.media import Files, Members
from magneto.data.problems import LONG_LINES, MALFORMED, Counts
from magneto.data.table import OTHER_SPLITS, Table, table_of_records
from tests.shards import write_shard

ROWS = [{"audio_filepath": "a.wav", "text": "one"}, {"audio_filepath": "b.wav", "text": "two"}]


def rows_of(table: Table) -> list[dict]:
    return [table[index] for index in range(len(table))]


def test_files_of_records(tmp_path: Path) -> None:
    lines = "\n".join(map(json.dumps, ROWS))
    contents = {
        "b.json": lines + "\n7\n", "a.json": "\n " + json.dumps([*ROWS, 5]),
        "a.csv": "audio_filepath; text\na.wav;one\n\nb.wav;two\nc.wav\n",
        "b.csv": "audio_filepath\ttext\na.wav\tone\nb.wav\ttwo\nc.wav\n",
    }  # fmt: skip
    for name, content in contents.items():
        for pack, end in ((bytes, ""), (gzip.compress, ".gz")):
            path, counts = tmp_path / f"{name}{end}", Counts()
            path.write_bytes(pack(content.encode()))
            table = read_file(path, counts)
            assert rows_of(table) == ROWS and table.root == tmp_path, path
            assert counts[MALFORMED] == 1 and str(path) in counts.named[MALFORMED][0]


def test_media_by_path_and_layouts_by_name(tmp_path: Path) -> None:
    """As the hub writes a path; as a layout's file lies two folders deep, beside a table."""
    column = media_column(table_of_records([{"x": {"path": "a.png"}}, {"x": 3}, {"x": " b "}]), "x")
    assert isinstance(column, Files) and column.names == ["a.png", "", "b"]
    for name, value in (("captions.json", "{}"), ("captions_table.json", "[]"), ("x.json", "{}")):
        (tmp_path / "a" / "b").mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / "b" / name).write_text(value)
    assert layout_files(str(tmp_path), COCO) == [tmp_path / "a" / "b" / "captions.json"]


def test_tables_in_the_folders_of_splits(tmp_path: Path) -> None:
    for split, rows in (("train", 3), ("val", 2)):
        (tmp_path / split).mkdir()
        records = [json.dumps({"file_name": f"{n}.png", "text": split}) for n in range(rows)]
        (tmp_path / split / "metadata.jsonl").write_text("\n".join(records))
        for n in range(rows):
            (tmp_path / split / f"{n}.png").write_bytes(b"")
    tables = read_source(str(tmp_path), Counts())
    assert {split: table.values("text") for split, table in tables.items()} == {
        "train": ["train"] * 3, "validation": ["val"] * 2}  # fmt: skip
    assert tables["validation"].root == tmp_path / "val"
    (tmp_path / "val" / "metadata.jsonl").unlink()
    assert "text" not in read_source(str(tmp_path), Counts())["train"].columns


def test_files_in_the_only_subfolder_that_has_them(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("image,label\n1.png,a\n,b\n2.png,b\n")

    def paths() -> list[str]:
        return media_column(read_file(table, Counts()), "image").names  # type: ignore[attr-defined]

    def rename(old: str, new: str) -> None:
        for number in (1, 2):
            (tmp_path / new.format(number)).parent.mkdir(exist_ok=True)
            (tmp_path / old.format(number)).rename(tmp_path / new.format(number))

    for name in ("1.png", "2.png"):
        (tmp_path / name).write_bytes(b"")
    assert paths() == ["1.png", "", "2.png"]
    rename("{}.png", "images/{}.png")
    assert paths() == ["images/1.png", "", "images/2.png"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "1.png").write_bytes(b"")
    assert paths() == ["images/1.png", "", "images/2.png"]
    (tmp_path / "other" / "2.png").write_bytes(b"")
    assert paths() == ["1.png", "", "2.png"], "which folder?"
    table.write_text("image,label\n1,a\n2,b\n")
    rename("images/{}.png", "images/{}.jpeg")
    assert paths() == ["1", "2"], "which ending?"
    rename("other/{}.png", "other/{}.txt")
    assert paths() == ["images/1.jpeg", "images/2.jpeg"]


def test_long_texts_of_a_tar_file_are_left_out(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(files, "LINE_BYTES", 9)
    counts = Counts()
    path = write_shard(tmp_path / "a.tar", {"1.TXT": b"short", "2.txt": b"x" * 10})
    assert list(stream_records(path, counts)) == [{"text": "short"}] and counts == {LONG_LINES: 1}
    (tmp_path / "a.csv").write_text("a;b,c\n")
    assert files.quoted_separator(tmp_path / "a.csv") == ","


def test_a_header_to_write_is_short_and_asked_for_of_tables_alone(tmp_path: Path) -> None:
    (tmp_path / "b.tsv").write_text("9" * 5000 + "\n\t\r")
    assert len(str(read_file(tmp_path / "b.tsv", Counts()).no_column("image"))) < 500
    assert "image<TAB>label" in str(
        read_file(tmp_path / "b.tsv", Counts()).no_column("image", "label")
    )
    (tmp_path / "a.jsonl").write_text('{"x": 1}')
    assert "above" not in str(read_file(tmp_path / "a.jsonl", Counts()).no_column("image"))


def test_an_unknown_file_is_answered_with_those_that_are_known(tmp_path: Path) -> None:
    for name in ("a.txt", "a.zip"):
        (tmp_path / name).write_text("x")
        with pytest.raises(ValueError, match=r"Unsupported source .*hf:NAME, or a file"):
            read_source(str(tmp_path / name), Counts())


def test_recordings_by_folder_and_in_shards(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MAGNETO_CACHE", str(tmp_path / "cache"))
    for name in ("train/x/1.wav", "train/y/z/2.FLAC", "dev/x/3.mp3", "dev/x/val/4.mp3"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(name.encode())
    for name in ("train", "val", "extra"):
        (tmp_path / "flat" / name).mkdir(parents=True)
        (tmp_path / "flat" / name / "1.wav").touch()
    assert {*read_source(str(tmp_path / "flat"), Counts(), "audio")} == {"train", "validation"}
    splits = read_source(str(tmp_path / "in"), counts := Counts(), "audio")
    assert sorted(counts.values()) == [2] and read_source(
        str(tmp_path / "in" / "dev" / "x"), Counts(), "audio"
    )["validation"].values("label") == [None]  # of "val"
    (tmp_path / "in" / "dev" / "x" / "y").mkdir()
    (whole,) = read_source(str(tmp_path / "in" / "dev" / "x"), Counts(), "audio").values()
    assert len(whole) == 2, "classes beside a folder named as a split: no splits"
    assert [row["audio"].read() for row in rows_of(splits["train"])] == [
        b"train/x/1.wav", b"train/y/z/2.FLAC"
    ]  # fmt: skip
    assert splits["train"].values("label") == ["x", "y"]
    assert splits["validation"].values("label") == ["x", "x"]
    members = {
        "a.flac": b"sound", "a.txt": b"of a", "b.json": b'{"transcript": "of b", "speaker": 3}',
        "b.wav": b"more", "c.json": b"{", "c.txt": b"of c", "a.json": b'{"text": "not this"}',
        "d.json": b"5", "d.mask.png": b"where", "d.png": b"what", "d.wav": b"cut off",
    }  # fmt: skip
    members = dict(sorted(members.items()))
    source = write_shard(tmp_path / "a.tar", members)
    table = read_source(str(source), Counts(), "audio")["train"]
    assert table.values("text") == ["of a", "of b", "of c", None]
    assert table.values("speaker") == [None, 3, None, None]
    assert table.values("label") == [None, None, None, 5]
    assert [table[n]["audio"].read() for n in (0, 1, 3)] == [b"sound", b"more", b"cut off"]
    column = table.columns["audio"]
    assert column.present().tolist() == [True, True, False, True]
    assert column.sizes().tolist() == [5, 4, -1, 7]
    assert Members(column.shards, column.keys, column.places[::-1]).state() != column.state()
    assert (table[3]["mask"].read(), table[3]["image"].read()) == (b"where", b"what")
    content, counts = source.read_bytes(), Counts()
    source.write_bytes(content[: content.index(b"cut off") + 3])
    assert not read_source(str(source), counts, "audio")["train"].columns["audio"].present()[3]
    assert counts[MALFORMED] == 1


def test_folders_of_a_shard_separate_examples(tmp_path: Path) -> None:
    members = {"a/": b"", "a/1.txt": b"one", "b/": b"", "b/1.txt": b"two"}
    members["b/1.json"] = b'{"speaker": 3, "names": ["x", "y"], "no": [4]}'
    source = write_shard(tmp_path / "a.tar", {**members, "b/1.wav": b"sound"})
    table = read_source(str(source), Counts(), "audio")["train"]
    assert table.values("text") == ["one", "two"] and table.values("speaker") == [None, 3]
    assert table.values("names") == [None, ["x", "y"]] and "no" not in table.columns


def test_shards_are_read_although_tables_of_their_records_lie_beside_them(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    write_shard(tmp_path / "00000.tar", {"1.jpg": b"\xff\xd8\xff", "1.txt": b"a dog"})
    (tmp_path / ".00001.tar").touch()
    beside = datasets.Dataset.from_dict({"url": ["somewhere"], "caption": ["a dog"]})
    beside.to_parquet(str(tmp_path / "00000.parquet"))
    table = read_source(str(tmp_path), Counts())["train"]
    assert {*table.columns} == {"image", "text", "key"}


def shard(path: Path) -> bytes:
    return write_shard(path, {f"{n}.json": b'{"text": "x"}' for n in range(9)}).read_bytes()


def test_a_shard_that_is_damaged_or_cut_off_in_the_middle_is_counted(tmp_path: Path) -> None:
    """Python's reader takes a damaged header for the end, and says nothing."""
    path = tmp_path / "a.tar"
    whole = shard(path)
    flipped = (whole[:at] + b"\xff" + whole[at + 1 :] for at in (5 * 1024 + 3, 5 * 1024 + 150))
    for content in (*flipped, whole[:5500]):
        path.write_bytes(content)
        for read in (
            lambda counts: read_source(str(path), counts, "text")["train"].values("text"),
            lambda counts: list(stream_records(path, counts)),
        ):
            assert len(read(counts := Counts())) == 5
            assert counts.named[MALFORMED][0].startswith(f"{path}: damaged at byte 5,120; the rest")


def test_columns_of_a_hub_data_set(tmp_path: Path) -> None:
    """Media as bytes, by path or missing. Paths that several rows share name none of them."""
    datasets = pytest.importorskip("datasets")
    path = tmp_path / "b.png"
    path.write_bytes(b"file")
    media = [{"bytes": b"bytes", "path": "a"}, {"bytes": None, "path": str(path)}, None]
    again = [{"bytes": b"bytes", "path": "a"}, {"bytes": b"more", "path": "a"}, None]
    kinds = datasets.Features(
        {"label": datasets.ClassLabel(names=["no", "yes"]), "sound": datasets.Value("binary"),
         **dict.fromkeys(("one", "two"), datasets.Image())}
    )  # fmt: skip
    columns = {"label": [1, -1, None], "sound": [None, b"fLaC", None], "one": media, "two": again}
    datasets.Dataset.from_dict(columns, features=kinds).to_parquet(str(tmp_path / "a.parquet"))
    table = read_source(str(tmp_path / "a.parquet"), Counts())["train"]
    assert table.values("label") == ["yes", None, None]
    one, two, sound = (table.columns[name] for name in ("one", "two", "sound"))
    assert [one.key(n) for n in range(3)] == ["a", str(path), "2"] and two.key(1) == "1"
    assert one.sizes().tolist() == [5, -1, -1] and one.name(1).endswith("row 1")
    assert (one.read(1), two.read(1), one.file(1), sound.read(1)) == (
        b"file", b"more", str(path), b"fLaC"
    )  # fmt: skip
    assert (one.kind, sound.kind) == ("image", "audio")


def test_members_that_say_nothing_are_counted(tmp_path: Path) -> None:
    path, counts = tmp_path / "a.tar", Counts()
    content = shard(path)
    for odd in (b'{"text": "x",', b'{"c": "\\ud8"}', b'{"x":"\\ud83d"'):
        content = content.replace(b'{"text": "x"}', odd, 1)
    path.write_bytes(content)
    read_source(str(path), counts, "text")
    assert counts[UNREAD_WORDS] == 3
    assert counts.named[UNREAD_WORDS][0].startswith(f"{path}, 0.json: not JSON (")


def test_a_column_of_splits_is_followed(tmp_path: Path) -> None:
    """Rows of a test set are not trained on, also if the table is alone in its folder."""
    path, counts = tmp_path / "train.csv", Counts()
    words = ["train", "Train", "val", "test", "dev", "unsure", ""]
    path.write_text("text,split\n" + "".join(f"{n},{word}\n" for n, word in enumerate(words)))
    for source in (path, tmp_path):
        splits = read_source(str(source), counts, "text")
        assert {split: table.values("text") for split, table in splits.items()} == {
            "train": ["0", "1"], "validation": ["2", "4"], "test": ["3"],
        }  # fmt: skip
    assert counts[OTHER_SPLITS] == 4
    path.write_text("text,split\na,hand\nb,seam\n")
    assert len(read_source(str(path), counts, "text")["train"]) == 2
    (tmp_path / "train.jsonl").touch()
    with pytest.raises(ValueError, match=r"two files for one split: .*train\.csv and .*\.jsonl"):
        read_source(str(tmp_path), counts, "text")


def test_a_damaged_parquet_file_is_one_line(tmp_path: Path, monkeypatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.parquet"
    datasets.Dataset.from_dict({"text": ["one" * 90, "two"]}).to_parquet(str(path))
    content = path.read_bytes()
    for damaged in (content[:-3], content[:4] + b"\xff" * 20 + content[24:]):
        path.write_bytes(damaged)
        reads = (lambda: read_source(str(path), Counts())["train"].values("text"),
                 lambda: list(read_documents(str(path), "text", Counts())))  # fmt: skip
        for read in reads:
            with pytest.raises(ConfigError) as caught:
                read()
            [line] = caught.value.lines
            assert line.startswith(f"cannot load hf:{path} (") and "\n" not in line
