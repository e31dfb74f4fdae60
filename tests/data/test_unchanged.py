"""What each text pipeline yields for small odd files, as digests taken before they shared a reader.

A changed digest means that runs and caches made before would meet other data.
"""

import gzip
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from magneto.data.counts import Counts
from magneto.data.documents import read_documents
from magneto.language.classification.files import read_file
from magneto.language.classification.glue import GLUE, Columns
from magneto.language.in_context.files import load_questions
from magneto.language.in_context.suites import SUITES
from magneto.translation.sources import open_parallel

MARK = b"\xef\xbb\xbf"
ODD = (
    "tab\there, “quotes” \"plain\", 'one', naïve 東京 🙂, \u2028 and \x0c and \x85 \ufffd nul-free"
)


def lines(kind: str, count: int = 400) -> list[str]:
    """Return lines of words, the same each time."""
    draw = random.Random(kind)
    words = [*ODD.split(" "), kind, "", " ", "«é»", '"', "a,b", ";"]
    return [" ".join(draw.choices(words, k=draw.randrange(30))) for _ in range(count)]


def objects(kind: str, *fields: str) -> bytes:
    """Return lines of JSON, every seventh of them odd."""
    texts = lines(kind, 40 * len(fields))
    odd = ["", "  ", "[]", "3", '"text"', "{", '{"text": 5, "label": 1}', "null", "NaN", "[" * 9999]
    made = []
    for number in range(40):
        values = texts[number * len(fields) : (number + 1) * len(fields)]
        made.append(json.dumps(dict(zip(fields, values, strict=True)), ensure_ascii=number % 2 > 0))
        if number % 7 == 0:
            made.append(odd[number // 7])
        if number % 11 == 0:
            made.append(made[-1].replace("a", "\\ud83d", 1))
    return "\r\n".join(made).encode()


def damaged(text: bytes) -> bytes:
    """Put bytes that are not UTF-8 among others."""
    return text[:900].replace(b" ", b" \xff\xe9", 7) + text[900:]


def table(kind: str, separator: str, header: list[str], end: str = "\n") -> bytes:
    """Return a table without quotes, with rows too short and too long."""
    texts = [line.replace("\t", " ").replace(",", ";").replace('"', "'") for line in lines(kind)]
    rows = [header] + [[*texts[i : i + len(header) - 1], str(i % 3)] for i in range(0, 240, 3)]
    rows += [["short"], [], ["", *texts[1 : len(header)]], [*header, "long"]]
    return end.join(separator.join(row) for row in rows).encode()


def tmx(kind: str) -> str:
    texts = [line.replace("\x0c", "").replace("<", "") for line in lines(kind, 60)]
    unit = (
        '<tu><tuv xml:lang="EN-us"><seg>a <b>{}</b></seg></tuv>'
        '<tuv lang="{}"><seg>{}</seg></tuv></tu>'
    )
    codes = ["de", "DE-AT", "fr", "x"]
    body = "".join(unit.format(texts[i], codes[i % 4], texts[i + 1]) for i in range(0, 60, 2))
    return f'<tmx version="1.4"><header/><body>{body}</body></tmx>'


LONG = b"x" * 700_000 + "é東🙂".encode() * 200_000 + b"\nend"
QUOTED = (
    'id,text,label\r\n1,"one, ""two""\r\nthree",a\n2,\'x\',b\n\n3,"'
    + "y" * 140_000
    + '",a\n4,"z"z,b\n'
)
GRANDE = [
    {"sentence": f"{n} The cup \u2028missed _ again.", "option1": "a", "option2": "b\u00e9",
     "answer": str(1 + n % 2)}
    for n in range(9)
]  # fmt: skip
STORY = [
    {**{f"InputSentence{n}": f'So, "{n}" {i}.' for n in range(1, 5)},
     "RandomFifthSentenceQuiz1": "Yes, sir.", "RandomFifthSentenceQuiz2": "No.\nOr",
     "AnswerRightEnding": "1"}
    for i in range(5)
]  # fmt: skip


def spreadsheet(rows: list[dict[str, str]], separator: str) -> bytes:
    """Return rows in quotes, as spreadsheets write them, with a blank row in between."""
    cells = [list(rows[0]), *(list(row.values()) for row in rows), []]
    quoted = (['"' + cell.replace('"', '""') + '"' for cell in row] for row in cells)
    return "\r\n".join(separator.join(row) for row in quoted).encode()


FILES: dict[str, bytes] = {
    "a.txt": "\n\n".join(lines("plain")).encode(),
    "b.txt": MARK + damaged("\r\n\r\n".join(lines("windows")).encode()),
    "c.txt": "\r".join(lines("mac")).encode(),
    "d.txt": LONG,
    "empty.txt": b"",
    "mark.txt": MARK,
    "e.jsonl": objects("json", "text", "label"),
    "f.jsonl": MARK + damaged(objects("odd", "label", "text", "other")),
    "g.tsv": table("glue", "\t", ["index", "sentence", "label"]),
    "h.tsv": MARK + damaged(table("crlf", "\t", ["sentence", "label"], "\r\n")),
    "i.csv": table("comma", ",", ["text", "label"]),
    "j.csv": QUOTED.encode(),
    "cola.tsv": table("cola", "\t", ["a", "0", "", "text of it"]),
    "winogrande.jsonl": "\n\n".join(map(json.dumps, GRANDE)).encode(),
    "storycloze.csv": MARK + spreadsheet(STORY, ","),
    "storycloze.tsv": spreadsheet(STORY, "\t"),
    "p.en": MARK + damaged("\n".join(lines("english")).encode()),
    "p.de": "\r\n".join(lines("german")).encode(),
    "q.tsv": table("pairs", "\t", ["en", "de", "fr"], "\r\n"),
    "r.en-de.tsv": damaged(table("named", "\t", ["sentence", "satz"])),
    "s.jsonl": objects("flat", "en", "de", "x y"),
    "t.jsonl": b"\n".join(
        b'{"translation": %s}' % line for line in objects("in", "de", "en").split(b"\r\n")
    ),
    "u.tmx": tmx("memory").encode(),
    "v.tmx": tmx("wide").encode("utf-16"),
}  # fmt: skip


def documents(path: Path) -> list:
    return list(read_documents(str(path), "text", Counts()))


def rows(columns: Columns, number: bool = False) -> Callable[[Path], list]:
    return lambda path: [
        (row.text, row.pair, row.label) for row in read_file(path, columns, number, Counts())
    ]


def questions(suite: str) -> Callable[[Path], list]:
    return lambda path: load_questions(SUITES[suite], str(path)).items


def pairs(path: Path) -> list:
    source = path.with_name("p") if path.name.startswith("p.") else path
    return list(open_parallel(str(source), None).read("de", "en", "train", Counts()))


OWN = Columns(("text",), (), ("label",))
PAIRED = Columns(("text",), ("other",), ("label",))
SENTENCE = Columns(("sentence",), (), ("label",))
# File, how it is read, how many come out, and their digest.
CASES = [
    ("a.txt", documents, 6, "e6f708b106ebfec3"),
    ("b.txt", documents, 7, "b5b1ad70dc892f6f"),
    ("c.txt", documents, 1, "41f0a09eb2c40ca3"),
    ("d.txt", documents, 2, "53bfe30a2af79447"),
    ("empty.txt", documents, 0, "71857576257465c7"),
    ("mark.txt", documents, 0, "71857576257465c7"),
    ("e.jsonl", documents, 40, "3a2dbbfc10e8a530"),
    ("f.jsonl", documents, 38, "f80a2ae3e777be59"),
    ("e.jsonl", rows(OWN), 39, "8d7dcd36a648b3c5"),
    ("f.jsonl", rows(PAIRED), 31, "d46b599d42b84053"),
    ("g.tsv", rows(SENTENCE), 78, "3128d8c6250e7f79"),
    ("h.tsv", rows(SENTENCE, True), 77, "c447b9b0a2d70f3f"),
    ("i.csv", rows(OWN), 76, "c4b55aa5cad09715"),
    ("j.csv", rows(OWN), 3, "af5222d0cc0ddfc3"),
    ("cola.tsv", rows(GLUE["cola"].columns), 79, "96b380710adb7f18"),
    ("winogrande.jsonl", questions("winogrande"), 9, "2fac94fb4248988e"),
    ("storycloze.csv", questions("storycloze"), 5, "b20b3f9a19477b3d"),
    ("storycloze.tsv", questions("storycloze"), 5, "b20b3f9a19477b3d"),
    ("p.en", pairs, 400, "71316ee6058273f2"),
    ("q.tsv", pairs, 81, "dab8f9bce1c3f8fd"),
    ("r.en-de.tsv", pairs, 82, "844133bb85c978a5"),
    ("s.jsonl", pairs, 42, "8bd9e31f28cd731c"),
    ("t.jsonl", pairs, 42, "261a4e44e72083a3"),
    ("u.tmx", pairs, 15, "1e53a131b2b7e7f1"),
    ("v.tmx", pairs, 15, "4acfeee8b85e0ba5"),
]  # fmt: skip


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize(("name", "read", "count", "digest"), CASES)
def test_what_is_yielded_is_as_before(
    tmp_path: Path, name: str, read: Callable[[Path], list], count: int, digest: str, packed: bool
) -> None:
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(FILES[name]) if packed else FILES[name])
    if name == "p.en":
        (tmp_path / "p.de").write_bytes(FILES["p.de"])
    found = read(path)
    written = repr(found).encode("utf-8", errors="surrogatepass")
    assert (len(found), hashlib.blake2b(written, digest_size=8).hexdigest()) == (count, digest)
