"""The documentation names what there is: modules, keys, commands and options."""

import ast
import dataclasses
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from magneto.cli import COMMANDS, USAGE, command_parser
from magneto.recipe import config_classes, load_recipe, recipe_names
from magneto.tasks import TASKS
from magneto.theory.placement import PLACEMENTS, SLOTS
from magneto.training.config import TrainingConfig
from tests.unit.test_house import COUNTED

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# The log keeps commands as they were when it was written.
PAGES = [ROOT / "README.md", *(p for p in sorted(DOCS.rglob("*.md")) if "reports" not in p.parts)]
PRESENT = [page for page in PAGES if page.name not in ("log.md",)]

TAGLINE = ("One Transformer for every modality, and the lab that says which norm placement "
           "trains, at which rate, and why.")  # fmt: skip
# Blocks that need a run or an exported directory: only their imports are run.
NEED_A_MODEL = {"docs/guide/export.md", "docs/fields/speech.md",
                "docs/fields/translation.md"}  # fmt: skip


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_first_line_says_what_it_does() -> None:
    files = ["README.md", "docs/index.md", "mkdocs.yml", "pyproject.toml"]
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in files} | {"--help": USAGE}
    assert not [name for name, text in texts.items() if TAGLINE not in " ".join(text.split())]
    assert not [name for name, text in texts.items() if "the usual ones" in text]


def test_the_size_in_contributing_is_the_one_that_is_tested() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("`", "")
    rows = dict(re.findall(r"^\| ([^|]*) \| ([\d,]+) \|$", text, re.MULTILINE))
    assert {name: int(number.replace(",", "")) for name, number in rows.items()} == COUNTED


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", title.lower()).split() for title in titles)
    return {"", *map("-".join, words)}


def test_links_of_the_pages_beside_docs_lead_somewhere() -> None:
    """Those of docs/ are checked where the documentation is built."""
    links = [
        (page.name, *link.partition("#")[::2])
        for page in ROOT.glob("*.md")
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert len(links) > 10
    assert not [link for link in links if not (ROOT / link[1]).exists()]
    assert not [link for link in links
                if link[1].endswith(".md") and link[2] not in anchors(ROOT / link[1])]  # fmt: skip


def test_the_map_has_every_room_and_no_other() -> None:
    source = ROOT / "src" / "magneto"
    block = next(
        b
        for b in (ROOT / "README.md").read_text(encoding="utf-8").split("```")
        if "theory/" in b and "commands/" in b
    )
    named = re.findall(r"(?:^|(?<=/ ))(\w+/)(?= )", block, re.MULTILINE)
    rooms = {f"{path.parent.name}/" for path in source.glob("*/__init__.py")} | {"recipes/"}
    assert len(named) == len(set(named)) and set(named) == rooms


@pytest.mark.parametrize("page", ["README.md", "docs/theory.md"])
def test_tables_of_placements_agree_with_the_table(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    table = next(each for each in text.split("\n\n") if "| self-attention |" in each)
    rows = dict(re.findall(r"^\| \**`([a-z0-9-]+)`\** \| ([^|]*) \|", table, re.MULTILINE))
    assert list(rows) == list(PLACEMENTS)
    for name, layout in rows.items():
        slots = {word for word in re.split(r"[,; ]+", layout) if word in SLOTS}
        assert slots == set(PLACEMENTS[name].self_attention), name


def blocks() -> list[Any]:
    """Return every block of Python in the documentation, with its page."""
    return [
        pytest.param(page, block, id=f"{page.stem}-{number}")
        for page in PAGES
        for number, block in enumerate(
            re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        )
    ]


@pytest.mark.parametrize(("page", "block"), blocks())
def test_python_on_the_pages_runs(page: Path, block: str) -> None:
    snippet = re.match(r'--8<-- "(.*)"', block)
    if snippet:
        assert (ROOT / snippet[1]).is_file(), "examples have tests of their own"
        return
    tree = ast.parse(block)
    if name_of(page) in NEED_A_MODEL:
        pytest.importorskip("transformers")
        tree.body = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    exec(compile(tree, name_of(page), "exec"), {})


def test_modules_that_are_named_exist() -> None:
    pytest.importorskip("transformers")  # pages name what lies in hf
    assert not [
        f"{name_of(page)}: {name}"
        for page in PRESENT
        for name in named_modules(page)
        if not exists(name)
    ]


def named_modules(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    return {name.rstrip(".") for name in re.findall(r"(?<![\w./-])magneto(?:\.\w+)+", text)}


def exists(dotted: str) -> bool:
    """Return whether a dotted name leads to a module or to something in one."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def known_keys() -> set[str]:
    """Return every dotted key that some task's recipe may have."""
    found = {f"training.{field.name}" for field in dataclasses.fields(TrainingConfig)}
    for task in TASKS:
        for section, kind in zip(("model", "data"), config_classes(task), strict=True):
            found |= {f"{section}.{field.name}" for field in dataclasses.fields(kind)}
    return found


def test_keys_of_recipes_that_are_named_exist() -> None:
    known = known_keys() | {"data.digest", "model.safetensors"}
    wrong = []
    for page in PRESENT:
        text = re.sub(r"\]\[[^]]*\]", "", page.read_text(encoding="utf-8"))
        found = re.findall(r"(?<![\w.])(?:--|`)((?:model|data|training)\.\w+)(?=[ =:`]|$)", text)
        wrong += [f"{name_of(page)}: {key}" for key in sorted(set(found) - known)]
    assert not wrong


def test_commands_that_are_named_exist() -> None:
    named = {
        (name_of(page), word)
        for page in PRESENT
        for word in re.findall(r"^(?:\$ |.*-m )?magneto ([a-z]+)", page.read_text(), re.MULTILINE)
    }
    assert len(named) > 20 and not [pair for pair in named if pair[1] not in COMMANDS]


def test_commands_are_taken_with_the_options_and_the_recipe_that_they_name() -> None:
    """Each that names a recipe is parsed as typed, and its recipe is built with what it overrides.

    The others' options are known.
    """
    wrong = []
    calls = [
        (name_of(page), line)
        for page in PRESENT
        for line in command_lines(page.read_text(encoding="utf-8"))
    ]
    for page, line in calls:
        _, command, *words = shlex.split(line, comments=True)
        parser = command_parser(command)
        known = set(parser._option_string_actions) | {"--seed", "--task", "--distributed"}
        options = {word.split("=")[0] for word in words if word.startswith("--")}
        wrong += [f"{page}: {command} {o}" for o in options - known if "." not in o]
        recipe = next((word for word in words if word in recipe_names()), None)
        if recipe is None or command not in ("train", "compare", "probe", "ladder"):
            continue
        try:
            _, overrides = parser.parse_with_overrides(words)
            load_recipe(recipe, overrides)
        except (SystemExit, ValueError) as error:
            wrong.append(f"{page}: {line}: {error}")
    assert not wrong


def command_lines(text: str) -> list[str]:
    """Return the lines of blocks that call the command, continued ones joined."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    inside = "\n".join(re.findall(r"```\n(.*?)```", joined, re.DOTALL))
    names = "|".join(COMMANDS)
    return re.findall(rf"(?:^|^\$ |-m )(magneto (?:{names})\b.*)$", inside, re.MULTILINE)
