"""What a table of any field finds, holds out, and is known by."""

from pathlib import Path

import numpy as np
import pytest

from magneto.data import table
from magneto.data.formats import read_file
from magneto.data.media import Files
from magneto.data.problems import MALFORMED, Counts
from magneto.data.sources import hash_of
from magneto.data.table import (
    FROM_TEST,
    TEST_UNUSED,
    Table,
    by_split,
    divide,
    hold_out,
    table_of_records,
)

# Words in the order of their hashes, the first of which is below a share of 0.15.
ORDER = sorted(map(str, range(11)), key=hash_of)


def people(count: int, speakers: int) -> Table:
    return table_of_records(
        [{"text": f"{n}", "speaker": f"s{n % speakers}"} for n in range(count)], "x"
    )


@pytest.mark.parametrize(
    ("name", "lines", "places"),
    [
        ("a.csv", ["text,split", "1,train", "", "2,dev", "3", "x,dev"], ["row 5", "row 6"]),
        ("a.jsonl", ["", '{"text": 1, "split": "train"}', "{", '{"text": "x", "split": "dev"}'],
         ["line 3", "line 4"]),
        ("a.json", ['[{"text": 1, "split": "train"}, 7, {"text": "x", "split": "dev"}]'],
         ["record 2", "record 3"]),
    ],
)  # fmt: skip
def test_rows_are_named_by_their_place_in_the_file(
    name: str, lines: list[str], places: list[str], tmp_path: Path
) -> None:
    """Also in a split, and after rows that were skipped; the header is row 1."""
    (tmp_path / name).write_text("\n".join(lines))
    found = by_split(read_file(tmp_path / name, counts := Counts()), counts)["validation"]
    list(found.read_each(found.values("text"), int, counts))
    named = [line.split(":")[0] for line in counts.named[MALFORMED]]
    assert named == [f"{tmp_path / name}, {place}" for place in places]


def test_usual_names_are_found_and_a_wrong_one_has_the_nearest() -> None:
    table = table_of_records(
        [{" Sentence ": "a", "cls": 1, "Answers": ["b"], "file_name": "c"}], "x"
    )
    found = [table.find(what) for what in ("text", "label", "answer", "image", "question")]
    assert found == [" Sentence ", "cls", "Answers", "file_name", None]
    assert table.find("label", "") is None and table.find("label", "file_name") == "file_name"
    with pytest.raises(ValueError, match=r"x has no column 'clss' \(data.label_column\).*cls"):
        table.find("label", "clss")


@pytest.mark.parametrize("speakers", [2, 3, 40])
@pytest.mark.parametrize("fraction", [1e-9, 0.3, 1 - 1e-9])
def test_no_side_is_empty_and_values_stay_together(speakers: int, fraction: float) -> None:
    train, held = hold_out(people(80, speakers), fraction, "speaker")
    sides = [{row["speaker"] for row in map(part.__getitem__, range(len(part)))}
             for part in (train, held)]  # fmt: skip
    assert sides[0] and sides[1] and sides[0].isdisjoint(sides[1])
    assert len(train) + len(held) == 80 and len(sides[0] | sides[1]) == speakers


@pytest.mark.parametrize("sizes", [[1, *[20] * 6], [1, 3, 100, 6, 9], [1] * 9 + [30, 81], [60, 60]])
def test_the_share_of_rows_is_near_what_is_asked_for(sizes: list[int]) -> None:
    """Also of few values of unequal sizes; a large one is passed over where a smaller one does."""
    table = table_of_records([{"text": f"{k}-{n}", "speaker": k} for k in ORDER[: len(sizes)]
                      for n in range(sizes[ORDER.index(k)])], "x")  # fmt: skip
    held = hold_out(table, 0.15, "speaker")[1]
    backwards = table.take(np.arange(len(table))[::-1])
    assert 0.075 <= len(held) / len(table) <= (0.5 if len(sizes) == 2 else 0.25)
    assert {*hold_out(backwards, 0.15, "speaker")[1].values("text")} == {*held.values("text")}


def test_a_share_far_above_what_is_asked_for_is_said_and_one_value_can_not_be_held_out() -> None:
    counts = Counts()
    hold_out(people(60, 2), 0.1, "speaker", counts)
    assert counts == {"rows held out instead of about 6, because most rows share a few values of "
                      "'speaker'": 30}  # fmt: skip
    train, held = hold_out(people(60, 60), 0.1, "speaker", counts := Counts())
    # By chance, more rows of a small table are held out.
    some = train.take(np.arange(10)), held
    few = people(60, 60).take(np.concatenate([part.rows for part in some]))
    assert len(hold_out(few, 0.1, "speaker", counts)[1]) == len(held) > 0.2 * len(few)
    assert not counts
    with pytest.raises(ValueError, match=r"x has 5 rows with 1 value of 'speaker', too few"):
        hold_out(people(5, 1), 0.5, "speaker")


def test_what_is_held_out_stays_when_rows_are_added() -> None:
    few, more = (set(hold_out(people(n, n), 0.3, "text")[1].values("text")) for n in (60, 90))
    assert 5 < len(few) < 30 and few == {text for text in more if int(text) < 60}
    moved = [Table({"image": Files(Path(place), [f"{n}" for n in range(60)])}, np.arange(60))
             for place in ("a", "b")]  # fmt: skip
    one, other = (hold_out(table, 0.3, "image")[1].rows.tolist() for table in moved)
    assert one == other


def test_splits_by_their_names() -> None:
    counts = Counts()
    one, two, three = people(5, 5), people(3, 3), people(4, 4)
    assert divide({"train": one, "validation": two}, None, 0.5, "text", counts) == (one, two)
    train, held = divide({"train": one, "test": two}, None, 0.5, "text", counts)
    assert len(train) + len(held) == 5 and counts[TEST_UNUSED] == 3
    assert divide({"train": one}, {"test": two, "train": three}, 0.5, "text", counts)[1] is two
    assert counts[FROM_TEST] == 3
    other = {"test": two, "validation": three}
    assert divide({"train": one}, other, 0.5, "text", counts)[1] is three
    alone = divide({"validation": one}, None, 0.5, "text", counts)
    assert sum(map(len, alone)) == 5 and all(map(len, alone)), "not trained on what is held out"
    assert counts[FROM_TEST] == counts[TEST_UNUSED] == 3


def test_a_digest_names_values_in_their_order_and_the_content_of_media(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest(second: str = "b", content: bytes = b"12", rows: tuple = (0, 1)) -> str:
        (tmp_path / "f").write_bytes(content)
        columns = {"answer": ["a", second], "audio": Files(tmp_path, ["f", "none"])}
        return Table(columns, np.array(rows)).digest

    assert digest() == digest()
    names = Files(tmp_path, ["f", "./f", f"{tmp_path}/f", "x/../f", ""])
    assert [names.key(n) for n in range(5)] == ["f", "f", "f", "f", ""]
    states, sizes = Files(tmp_path, ["f", "none", "f"]).state(), Files(tmp_path, ["x", "f"]).sizes()
    assert states[0] == states[2] != states[1] is None and sizes.tolist() == [-1, 2]
    others = [digest("c"), digest(content=b"13"), digest(content=b"123"), digest(rows=(1, 0))]
    assert len({digest(), *others}) == 5
    read: list[int] = []
    monkeypatch.setattr(Files, "read", lambda _, number: read.append(number) or b"")
    assert Table({"audio": Files(tmp_path, ["f", "none"] * 50)}, np.arange(100)).digest
    assert len(read) == 2, "a recording that rows share is read once"
    monkeypatch.setattr(table, "SAMPLED_FILES", 3)
    assert Table({"audio": Files(tmp_path, list("abcdefg"))}, np.arange(1, 6)).digest
    assert read[2:] == [1, 3, 5], "from the first to the last of the rows"
