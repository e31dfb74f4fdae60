"""Strict configurations: types, nearest keys, all errors at once; YAML that nobody should write."""

import dataclasses
import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from magneto.config import (
    FOREIGN_NAMES,
    MAX_BYTES,
    ConfigError,
    differences,
    nearest,
    override,
    read_yaml,
)
from magneto.fields import (
    Dropout,
    PositiveInt,
    build,
    configuration,
    field_types,
    is_configuration,
    rule,
)
from magneto.nn.config import TransformerConfig
from magneto.recipe import config_classes
from magneto.tasks import TASKS
from magneto.training.config import TrainingConfig


@configuration
class Inner:
    width: PositiveInt = 4
    heads: PositiveInt = 1
    rate: float = 0.1
    kind: Literal["one", "two"] = "one"
    flag: bool = False
    pair: tuple[Dropout, Dropout] = (0.9, 0.98)
    maybe: Dropout | None = None

    @rule
    def heads_divide(self) -> Iterator[str]:
        if self.width % self.heads:
            yield f"heads ({self.heads}) must divide width ({self.width})"

    @rule
    def flag_has_two(self) -> Iterator[str]:
        if self.flag and self.kind == "one":
            yield "flag is of kind two"


@configuration
class Outer:
    name: str = "x"
    column: str | None = None
    inner: Inner = Inner()


def mistakes(kind: type, values: dict, where: str = "") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build(kind, values, where)
    return caught.value.lines


def test_values_take_the_fields_types() -> None:
    values = {"rate": "1e-3", "width": "8", "flag": "no", "pair": "0.1, 0.2", "maybe": "null"}
    assert build(Inner, values) == Inner(width=8, rate=1e-3, pair=(0.1, 0.2))
    assert build(Inner, {"pair": [0, 0.5], "maybe": 0}) == Inner(pair=(0.0, 0.5), maybe=0.0)
    for given in ("9007199254740993", 9007199254740993, " 9007199254740993"):
        assert build(Inner, {"width": given}).width == 9007199254740993, "whole numbers stay exact"
    assert build(Inner, {"maybe": ""}).maybe is None
    assert build(Outer, {"column": ""}).column == "", "an empty text is not null"
    assert build(Outer, {"name": 7, "column": 0.5}) == Outer(name="7", column="0.5")
    outer = Outer(name="y", inner=Inner(width=1000, maybe=0.5))
    assert build(Outer, {"name": "y", "inner": {"width": "1e3", "maybe": 0.5}}) == outer
    assert build(Outer, dataclasses.asdict(outer)) == outer


def test_all_errors_at_once_each_with_its_key() -> None:
    values = {
        "nam": 1,
        "inner": {"widht": 3, "rate": "fast", "kind": "twoo", "flag": 3, "width": 1.5, "pair": 1,
                  "maybe": 1},
    }  # fmt: skip
    assert sorted(mistakes(Outer, values)) == [
        "inner.flag must be true or false, not 3",
        "inner.kind must be one of one, two, not 'twoo'; did you mean two?",
        "inner.maybe must be in [0, 1) (or null), not 1",
        "inner.pair must be 2 numbers, each in [0, 1), not 1",
        "inner.rate must be a number, not 'fast'",
        "inner.width must be a whole number, 1 or more, not 1.5",
        "unknown key inner.widht; did you mean inner.width?",
        "unknown key nam; did you mean name?",
    ]


def test_rules_are_asked_where_all_fields_are_right() -> None:
    found = mistakes(Outer, {"nam": 1, "inner": {"heads": 3, "flag": True}})
    assert sorted(found) == [
        "inner.flag is of kind two",
        "inner.heads (3) must divide width (4)",
        "unknown key nam; did you mean name?",
    ]
    assert mistakes(Inner, {"width": 0, "heads": 3}) == ["width must be 1 or more, not 0"]


def test_a_configuration_in_python_is_strict_and_stays_checked() -> None:
    made = Inner(width=6, heads=3, pair=[0, 0.5])  # type: ignore[arg-type]
    assert made.pair == (0, 0.5) and hash(made) == hash(pickle.loads(pickle.dumps(made)))
    assert dataclasses.asdict(Outer(inner=made))["inner"]["width"] == 6
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.width = 7  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"^heads \(3\) must divide width \(4\)$"):
        dataclasses.replace(made, width=4)
    with pytest.raises(ConfigError, match=r"^unknown key widht; did you mean width\?$"):
        Inner(widht=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="width must be a whole number"):
        Inner(width="8")  # type: ignore[arg-type]


def test_overrides_reach_any_depth() -> None:
    values = {"a": {"b": {"c": 1}, "d": 2}}
    assert override(values, {"a.b.c": "5", "new.deep.key": 2}) == {
        "a": {"b": {"c": "5"}, "d": 2}, "new": {"deep": {"key": 2}},
    }  # fmt: skip
    assert values == {"a": {"b": {"c": 1}, "d": 2}}


def test_names_of_other_programs_are_answered_with_ours() -> None:
    fields = {"training": TrainingConfig, "model": TransformerConfig}
    known = [f"{part}.{name}" for part in fields for name in fields[part].__dataclass_fields__]
    for given, ours in (
        ("training.lr", "training.learning_rate"), ("training.bs", "training.batch_size"),
        ("model.hidden_size", "model.width"), ("model.d_model", "model.width"),
        ("training.warmup", "training.warmup_steps"),
    ):  # fmt: skip
        assert nearest(given, known) == f"; did you mean {ours}?"
    assert nearest("data.dim", ["model.width", "data.width"]) == "; did you mean data.width?"
    names = {"source", "max_length", *(name.partition(".")[2] for name in known)}
    assert set(FOREIGN_NAMES.values()) <= names, "every hint names a field"
    assert not names & FOREIGN_NAMES.keys(), "and hides none"


def test_odd_numbers_are_one_short_line() -> None:
    for name, given, answer in (
        ("width", "inf", "width must be a whole number, 1 or more, not 'inf'"),
        ("width", 10**18, "width must be a whole number of at most 18 digits, not 1000"),
        ("rate", 10**400, "rate must be a number, not 1000"),
        ("rate", "1e400", "rate must be a finite number, not inf"),
        ("rate", "x" * 5000, "rate must be a number, not 'xxx"),
        ("kind", [[["x"] * 50] * 50] * 50, "kind must be one of one, two, not [[['x', 'x'"),
    ):
        (line,) = mistakes(Inner, {name: given})
        assert answer in line and len(line) < 400


def configurations() -> list[type]:
    """Return the classes of all sections of all recipes, and those inside them."""
    found = [TrainingConfig, *(kind for task in TASKS for kind in config_classes(task))]
    for kind in found:
        found += [hint for hint in field_types(kind).values() if is_configuration(hint)]
    return sorted(set(found), key=lambda kind: f"{kind.__module__}.{kind.__name__}")


@pytest.mark.parametrize("kind", configurations(), ids=lambda kind: kind.__name__)
def test_each_field_of_each_configuration_is_strict_and_named(kind: type) -> None:
    hints = {name: h for name, h in field_types(kind).items() if not is_configuration(h)}
    assert "unknown key" in mistakes(kind, {"nothing": 1})[0]
    for name in hints:
        assert mistakes(kind, {f"{name}_": 1}) == [f"unknown key {name}_; did you mean {name}?"]
    wrong = {name: object() for name in hints}
    lines = mistakes(kind, wrong, "x")
    assert [line.split(" must be ")[0] for line in lines] == [f"x.{name}" for name in hints]


def written(folder: Path, text: str) -> Path:
    path = folder / "r.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_yaml_is_read_as_plain_values(tmp_path: Path) -> None:
    text = "a: [1, -2.5, 1.0e-05, true, null, .inf]\nb:\n  no: no\n  1: '1'\nc: 9007199254740993\n"
    assert read_yaml(written(tmp_path, text)) == {
        "a": [1, -2.5, 1e-5, True, None, math.inf],
        "b": {"no": "no", 1: "1"},
        "c": 9007199254740993,
    }
    assert read_yaml(written(tmp_path, "")) is None
    words = ["010", "1:30", "yes", "2020-99-99", "1e-3", "<<", "1_000"]
    assert read_yaml(written(tmp_path, f"[{', '.join(words)}]")) == words
    assert build(Inner, {"width": "010", "rate": "1e-3"}) == Inner(width=10, rate=1e-3)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a: 1\nb:\n  c: 2\n  d: 3\n  c: 4\n", "line 5: not YAML: duplicate key c"),
        ("{a: 1, a: 2}", "line 1: not YAML: duplicate key a, already in line 1"),
        ("a: &x 1\nb: *x\n", "line 2: not YAML: aliases (*)"),
        ("a: 1\nb: !!python/object/apply:os.system ['id']", "aliases (*) and tags (!)"),
        ("a: !!bool maybe\n", "tags (!)"),
        ("a: " + "[" * 500 + "]" * 500, "is nested too deeply"),
        ("? [a, b]\n: 1\n", "unhashable key"),
        ("a: [1\nb: 2\n", "not YAML"),
        ("a: " + "9" * 5000, "not YAML"),
        ("a: \0", "not YAML"),
        ("#" * (MAX_BYTES + 1), "is not a recipe"),
    ],
    ids=lambda words: words[:20],
)  # fmt: skip
def test_what_is_no_recipe_is_named_in_one_line(tmp_path: Path, text: str, answer: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    (line,) = caught.value.lines
    assert answer in line and line.startswith(str(path)) and "\n" not in line


def test_recipes_differ_by_field_also_where_a_section_was_null() -> None:
    before = {"model": {"head": None, "width": 8}, "data": {"names": ("a", "b")}, "seed": 1}
    after = {"model": {"head": {"width": 4}, "width": 9}, "data": {"names": ("a", "b")}}
    assert [*differences(before, after)] == [
        ("model.head", None, {"width": 4}), ("model.width", 8, 9)
    ]  # fmt: skip
