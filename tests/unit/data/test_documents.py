"""Documents from everywhere, and at the edges: characters at a cut, bytes that are no text."""

import gzip
import json
from operator import ne
from pathlib import Path

import pytest

from magneto.data.documents import (
    CUT_LINES,
    DOCUMENTS,
    PIECE_BYTES,
    docstrings,
    documents_fingerprint,
    is_prose,
    open_documents,
    read_documents,
)
from magneto.data.problems import EMPTY, INVALID_UTF8, MALFORMED, OTHER_SPLITS, Counts
from magneto.data.sources import HubDataset
from tests.shards import write_shard


def read(source: str) -> tuple[str, Counts]:
    counts = Counts()
    return "".join(read_documents(source, "text", counts)), counts


def test_a_cut_never_splits_a_character_and_an_unfinished_one_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for start, character in (("x", "é"), ("xx", "東"), ("xxx", "🙂")):
        text = start + character * (PIECE_BYTES // 2)
        path.write_text(text, encoding="utf-8")
        found, counts = read(str(path))
        assert found == text
        assert (counts[INVALID_UTF8], counts[CUT_LINES]) == (0, 1)
    path.write_bytes(b"x" * (2 * PIECE_BYTES) + b"\n\xff\n")
    assert f"{path}, line 2: " in read(str(path))[1].named[INVALID_UTF8][0]
    path.write_bytes(b"x" * (PIECE_BYTES - 1) + "é".encode()[:1])
    found, counts = read(str(path))
    assert found == "x" * (PIECE_BYTES - 1) + "\ufffd" and counts[INVALID_UTF8] == 1


def texts(source: object, split: str = "train") -> list[str]:
    return list(open_documents(str(source), "text")[split](Counts()))


def test_plain_text_is_cut_at_blank_lines(tmp_path: Path) -> None:
    paragraph = "word " * 500 + "\n\n"
    (tmp_path / "a.txt").write_text(paragraph * 6)
    documents = texts(tmp_path / "a.txt")
    assert len(documents) == 3
    assert "".join(documents).replace("\n", "") == (paragraph * 6).replace("\n", "")
    (tmp_path / "b.txt").write_bytes(b"one \r\ntwo\n")
    lines = open_documents(str(tmp_path / "b.txt"), "text", "line")["train"](Counts())
    assert [*lines] == ["one ", "two"]
    (tmp_path / "a.txt").write_text(("word " * 500 + "\n") * 900)
    lengths = [len(document) for document in texts(tmp_path / "a.txt")]
    assert len(lengths) == 3 and max(lengths) < PIECE_BYTES + 2600, "also without blank lines"


def test_a_folder_of_all_kinds(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one"))
    (tmp_path / "b.CSV").write_text('id,text\n1,"two,\ntwo"\n')
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "b.tsv").write_text('text\tid\n"three"\t\n')
    (tmp_path / "b.tsv").symlink_to(tmp_path / ".hidden" / "b.tsv")
    (tmp_path / "c.Json").write_text(json.dumps([{"text": "four"}]))
    (tmp_path / "deep" / "c.jsonl.gz").write_bytes(gzip.compress(b'{"text": "five"}'))
    members = {"1.txt": b"six", "2.json": b'{"text": "seven"}', "3.png": b"x"}
    write_shard(tmp_path / "deep" / "d.tar", members)
    (tmp_path / "README.md").write_text("about the others")
    assert texts(tmp_path) == ["one", "two,\ntwo", '"three"', "four", "five", "six", "seven"]


def test_files_are_of_the_split_that_they_are_named_after(tmp_path: Path) -> None:
    (tmp_path / "test-00").mkdir()
    for name in ("train-00", "train-01", "valid-00", "test-00/train", "notes"):
        (tmp_path / f"{name}.txt").write_text(name)
    splits = open_documents(str(tmp_path), "text")
    found = {split: list(documents(Counts())) for split, documents in splits.items()}
    assert found == {"train": ["notes", "train-00", "train-01"], "validation": ["valid-00"],
                     "test": ["test-00/train"]}  # fmt: skip
    for path in tmp_path.glob("train*"):
        path.unlink()
    assert texts(tmp_path) == ["notes", "test-00/train", "valid-00"]
    given = [(field, unit) for field in ("text", "body") for unit in ("paragraphs", "line")]
    found = {documents_fingerprint(str(tmp_path), *each) for each in given}
    assert len(found) == 4 and documents_fingerprint(str(tmp_path), *given[0]) in found
    (tmp_path / "notes.txt").rename(tmp_path / "x-train.txt")
    assert read(str(tmp_path))[0] == "notes", "of training, though another split comes first"


def test_a_field_split_of_records_is_followed(tmp_path: Path) -> None:
    words = ["train", "dev", "unsure", "Train", "test", None]
    rows = [{"text": f"{n}"} | ({"split": word} if word else {}) for n, word in enumerate(words)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "a.txt").write_text("6")
    counts = Counts()
    found = {
        split: list(read(counts)) for split, read in open_documents(str(tmp_path), "text").items()
    }
    assert found == {"train": ["0", "3", "5", "6"], "validation": ["1"]}
    assert counts[OTHER_SPLITS] == 1
    (tmp_path / "b.csv").write_text("text,Split\nb,train\nc,dev\n")
    assert texts(tmp_path / "b.csv", "validation") == ["c"]
    (tmp_path / "b.csv").write_text("text,split\nb,train\nc,test\n")
    assert [texts(tmp_path / "b.csv", split) for split in ("train", "test")] == [["b"], ["c"]]
    # Without "train", the field does not split.
    (tmp_path / "b.csv").write_text("text,split\nb,test\nc,dev\n")
    assert texts(tmp_path / "b.csv") == ["b", "c"]
    (tmp_path / "b.csv").unlink()
    (tmp_path / "a.jsonl").write_text('{"text": "a", "split": "hand"}')
    assert texts(tmp_path) == ["a", "6"]


def test_parquet_and_a_folder_like_a_hub_data_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"text": "one"}, {"text": None}, {"text": " "}])
    for split in ("train", "validation"):
        rows.to_parquet(str(tmp_path / f"{split}.parquet"))
    for source in (tmp_path / "train.parquet", tmp_path, f"hf:{tmp_path}"):
        counts = Counts()
        assert list(read_documents(str(source), "text", counts)) == ["one"]
        assert counts == {DOCUMENTS: 1, EMPTY: 1, MALFORMED: 1}
    assert texts(tmp_path, "validation") == ["one"]
    places = (f"hf:{tmp_path}", f"{tmp_path}/train.parquet", "hf:some/set:a", "hf:some/set:b")
    before, again = ([documents_fingerprint(place, "text") for place in places] for _ in range(2))
    assert before == again and len({*before}) == 4
    with (tmp_path / "train.parquet").open("ab") as file:
        file.write(b"x")
    after = [documents_fingerprint(place, "text") for place in places]
    assert [*map(ne, before, after)] == [True, True, False, False], "they are other sources"


def test_a_configuration_of_a_hub_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a usual split, and a split that is named."""
    read = lambda self, config, split: [{"text": f"{config} {split}"}]  # noqa: E731
    monkeypatch.setattr(HubDataset, "__init__", lambda self, given: setattr(self, "source", given))
    monkeypatch.setattr(HubDataset, "splits", lambda self, config: [f"{config} only"])
    monkeypatch.setattr(HubDataset, "stream", read)
    assert texts("hf:some/set:en") == ["en en only"] and texts("hf:some/set:en:x") == ["en x"]


def test_wrong_sources_say_what_is_right(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.tsv").write_text("good film\tpos\nbad film\tneg\n")
    for source, message in (
        (tmp_path / "empty", "none ends in"),
        ("builtin:docstring", "Known: builtin:docstrings"),
        (tmp_path / "a.tsv", r"a\.tsv has no column 'text' \(columns: 'good film', 'pos'\)\. "
         r"Set data\.text_field\. If the file has no header"),
    ):  # fmt: skip
        with pytest.raises((FileNotFoundError, ValueError), match=message):
            read(str(source))


def test_built_in_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prose = "Return the number of items in a container, or zero if there are none."
    code = "    indented code\n    more of it here"
    assert is_prose(prose) and not is_prose(">>> print(1)\n1") and not is_prose(code)
    assert is_prose("five words are a sentence") and not is_prose("four words are none")
    assert not is_prose("the numbers 1234 5678 9012 and 3456")
    for name in ("b.py", "a.py", "test/c.py", "broken.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f'"""{name}.\n\n{prose}\n\n{prose}\n\n>>> {code}"""\n')
    (tmp_path / "broken.py").write_text("def")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    assert docstrings() == [prose, prose]
    (tmp_path / "a.py").unlink()
    assert docstrings() == [prose, prose]  # of the cache
