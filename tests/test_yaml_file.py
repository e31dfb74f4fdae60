"""Files of YAML that nobody should write, and some do."""

from pathlib import Path

import pytest

from magneto.config import ConfigError
from magneto.yaml_file import MOST_BYTES, read_yaml


def written(folder: Path, text: str) -> Path:
    path = folder / "r.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_plain_values_and_aliases_are_read(tmp_path: Path) -> None:
    path = written(
        tmp_path, "a: &x {b: 1, c: [1, 2]}\nd: *x\ne:\n  <<: *x\n  c: 9007199254740993\n"
    )
    inner = {"b": 1, "c": [1, 2]}
    assert read_yaml(path) == {"a": inner, "d": inner, "e": {"b": 1, "c": 9007199254740993}}
    assert read_yaml(written(tmp_path, "")) is None
    words = "'no': '~'\n\"1\": !  x\n2: |\n  y\n"
    assert read_yaml(written(tmp_path, words)) == {"no": "~", "1": "x", 2: "y\n"}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a: 1\nb:\n  c: 2\n  d: 3\n  c: 4\n", "line 5: the key c is given twice, first in line 3"),
        ("a: 1\nb: 2\na: 3\n", "line 3: the key a is given twice, first in line 1"),
        (BOMB, "stands for more than 100,000 values"),
        ("a: &x\n  b: *x\n", "line 1: a value holds itself"),
        ("a: " + "[" * 5000 + "]" * 5000, "is nested too deeply"),
        ("a: " + "[" * 40 + "]" * 40, "line 1: nested too deeply"),
        ("a: !!python/object/apply:os.system ['id']", "line 1: the tag !!python/object"),
        ("a: 1\nb: !!bool maybe\n", "line 2: the tag !!bool has no place in a recipe"),
        ("a: !!int '_'\n", "line 1: the tag !!int has no place"),
        ("a: !!set {b}\n", "line 1: the tag !!set has no place"),
        ("a: 1\nb: 1:30\n", "line 2: 1:30 is another number to YAML"),
        ("a: [-1:30.5]\n", "line 1: -1:30.5 is another number to YAML"),
        ("a: 010\n", "line 1: 010 is another number to YAML"),
        ("a: !mine b\n", "line 1: the tag !mine has no place"),
        ("a:\n  ~: 1\n", "line 2: the key ~ is no word to YAML: write '~'"),
        ("a: {no: 1, de: 2}\n", "line 1: the key no is no word to YAML: write 'no'"),
        ("a: 2020-99-99\n", "not YAML: month must be in 1..12"),
        ("? [a, b]\n: 1\n", "line 1: a key must be a word"),
        ("a: [1\nb: 2\n", "not YAML"),
        ("a: " + "9" * 5000, "not YAML"),
        ("a: \0", "not YAML"),
        ("#" * (MOST_BYTES + 1), "is no recipe"),
    ],
)
def test_what_is_refused_is_named_in_one_line(text: str, answer: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    (line,) = caught.value.lines
    assert answer in line and line.startswith(str(path)) and "\n" not in line
