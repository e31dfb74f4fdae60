"""Strict configurations: types, nearest keys, all errors at once; YAML that nobody should write."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from magneto.config import (
    ELSEWHERE,
    MOST_BYTES,
    ConfigError,
    build,
    nearest,
    override,
    read_yaml,
    to_mapping,
)
from magneto.nn.config import TransformerConfig
from magneto.training.config import TrainingConfig


@dataclass(frozen=True)
class Inner:
    width: int = 4
    rate: float = 0.1
    kind: Literal["one", "two"] = "one"
    flag: bool = False
    pair: tuple[float, float] = (0.9, 0.98)
    maybe: float | None = None

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(["width must be 1 or more", "and so on"])


@dataclass(frozen=True)
class Outer:
    name: str = "x"
    inner: Inner = field(default_factory=Inner)


def test_values_take_the_fields_types() -> None:
    values = {"rate": "1e-3", "width": "8", "flag": "true", "pair": "0.1, 0.2", "maybe": "null"}
    assert build(Inner, values) == Inner(8, 1e-3, "one", True, (0.1, 0.2), None)
    assert build(Inner, {"pair": [0, 1], "maybe": 2}) == Inner(pair=(0.0, 1.0), maybe=2.0)
    assert build(Outer, {"inner": {"width": 7}}).inner.width == 7


def test_all_errors_at_once_each_with_its_key() -> None:
    values = {
        "nam": 1,
        "inner": {"widht": 3, "rate": "fast", "kind": "twoo", "flag": 3, "width": 1.5, "pair": 1},
    }
    with pytest.raises(ConfigError) as caught:
        build(Outer, values)
    lines = "\n".join(caught.value.lines)
    for words in (
        "unknown key nam; did you mean name?",
        "unknown key inner.widht; did you mean inner.width?",
        "inner.rate must be a number, not 'fast'",
        "inner.kind must be one of one, two, not 'twoo'; did you mean two?",
        "inner.flag must be true or false",
        "inner.width must be a whole number",
        "inner.pair must be a list",
    ):
        assert words in lines
    assert len(caught.value.lines) == 7


def test_impossible_values_beside_an_unknown_key() -> None:
    with pytest.raises(ConfigError) as caught:
        build(Outer, {"inner": {"width": 0, "odd": 1}})
    assert "unknown key inner.odd" in caught.value.lines
    assert "inner: width must be 1 or more" in caught.value.lines


def test_overrides_reach_any_depth() -> None:
    values = {"inner": {"width": 3}}
    assert override(values, {"inner.width": "5", "inner.rate": 1, "new.deep.key": 2}) == {
        "inner": {"width": "5", "rate": 1},
        "new": {"deep": {"key": 2}},
    }
    assert values == {"inner": {"width": 3}}
    deep = {"a": {"b": {"c": 1}}}
    assert override(deep, {"a.b.c": 2}) == {"a": {"b": {"c": 2}}} and deep["a"]["b"]["c"] == 1


def test_round_trip() -> None:
    outer = Outer("y", Inner(width=9, maybe=0.5))
    assert build(Outer, to_mapping(outer)) == outer


def test_names_of_other_programs_are_answered_with_ours() -> None:
    training = [f"training.{name}" for name in TrainingConfig.__dataclass_fields__]
    model = [f"model.{name}" for name in TransformerConfig.__dataclass_fields__]
    both = [*training, *model]
    assert nearest("training.lr", both) == "; did you mean training.learning_rate?"
    assert nearest("training.bs", both) == "; did you mean training.batch_size?"
    assert nearest("model.hidden_size", both) == "; did you mean model.width?"
    assert nearest("model.d_model", both) == "; did you mean model.width?"
    assert nearest("data.dim", ["model.width", "data.width"]) == "; did you mean data.width?"
    assert nearest("training.warmup", both) == "; did you mean training.warmup_steps?"


def test_every_hint_names_a_field_and_hides_none() -> None:
    known = {*TrainingConfig.__dataclass_fields__, *TransformerConfig.__dataclass_fields__,
             "source", "max_length"}  # fmt: skip
    assert set(ELSEWHERE.values()) <= known and not known & ELSEWHERE.keys()


def test_whole_numbers_stay_exact() -> None:
    for given in ("9007199254740993", 9007199254740993, " 9007199254740993"):
        assert build(Inner, {"width": given}).width == 9007199254740993
    assert build(Inner, {"width": "1e3"}).width == 1000


def test_odd_numbers_are_one_short_line() -> None:
    for name, given, answer in (
        ("width", "inf", "width must be a whole number, not 'inf'"),
        ("width", float("nan"), "width must be a whole number, not nan"),
        ("width", 10**18, "width must be a whole number of at most 18 digits, not 1000"),
        ("width", 10**400, "width must be a whole number of at most 18 digits, not 1000"),
        ("rate", 10**400, "rate must be a number, not 1000"),
        ("rate", float("nan"), "rate must be a finite number, not nan"),
        ("rate", "1e400", "rate must be a finite number, not inf"),
        ("rate", "x" * 5000, "rate must be a number, not 'xxx"),
        ("kind", [[["x"] * 50] * 50] * 50, "kind must be one of one, two, not [[['x', 'x'"),
    ):
        with pytest.raises(ConfigError) as caught:
            build(Inner, {name: given})
        (line,) = caught.value.lines
        assert answer in line and len(line) < 400


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


def test_what_is_refused_is_named_in_one_line(tmp_path: Path) -> None:
    for text, answer in (
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
    ):
        path = written(tmp_path, text)
        with pytest.raises(ConfigError) as caught:
            read_yaml(path)
        (line,) = caught.value.lines
        assert answer in line and line.startswith(str(path)) and "\n" not in line
