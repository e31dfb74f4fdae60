"""Who may import whom, and what an import costs."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src" / "magneto"

# Room: what of this package it may import, besides itself: rooms, or single modules of a room.
GROUND = {"config", "fields", "figures", "files", "progress", "weights"}
FIELDS = {"language", "speech", "translation", "vision", "vision_language"}
# What the loop knows of data: batches, and what is wrong with examples.
TO_THE_LOOP = {"data.stream", "data.workers", "data.problems"}
FIELD = {"nn", "theory", "functional", "data", "training.task", "runs", *GROUND}
ALLOWED = {
    "theory": set(),
    "config": set(),
    "fields": {"config"},
    "figures": set(),
    "functional": set(),
    "files": set(),
    "mistakes": set(),
    "progress": set(),
    "weights": {"files"},
    "tasks": set(),
    "nn": {"theory", "config", "fields"},
    "data": GROUND,
    "training": {"nn.parametrization", "functional", "tasks", *TO_THE_LOOP, *GROUND},
    "recipe": {
        *("config", "fields", "files", "tasks", "theory", "training.config", "nn.config"),
        *(f"{field}.config" for field in FIELDS),
    },
    "runs": {"recipe", "tasks", "training", *GROUND},
    "lab": {
        *("theory", "nn", "data.stream", "training", "recipe", "runs", "functional", "mistakes"),
        *GROUND,
    },
    "start": {"recipe", "training.task", "data", *(FIELDS - {"vision_language"}), *GROUND},
    "hf": {"nn", "functional", "data", *GROUND, *FIELDS},
    **{field: FIELD for field in FIELDS},
    "vision_language": FIELD | {"vision", "language"},
}
# Imports that only a type checker sees.
FOR_TYPES = {("recipe", "magneto.training.task")}
# The edge, which may import everything.
FREE = {"__init__", "__main__", "cli", "commands"}
# Translations are written by transformers' own beam search, which is loaded when they are.
LAZILY = {"translation": {"hf.BeamSearch", "hf.Translator"}}
CORE = {"torch", "numpy", "scipy", "yaml", "safetensors", "tensorboard", "rich", "jinja2",
        "matplotlib", "filelock", "pydantic", "annotated_types"}  # fmt: skip

FILES = sorted(SOURCE.rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(["magneto", *path.relative_to(SOURCE).with_suffix("").parts])


def unit_of(module: str) -> str:
    """Return the unit of "magneto.nn.init": "nn"; of "magneto" itself: "__init__"."""
    return [*module.split("."), "__init__"][1]


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Return every imported module of a file, and whether that happens inside a function."""
    return list(imports_of(path))


def statements(node: ast.AST, inside: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yield what is below a node but expressions, and whether that is inside a function."""
    inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child, inside
            yield from statements(child, inside)


def imports_of(path: Path) -> Iterator[tuple[str, bool]]:
    package = module_name(path).split(".")[:-1]
    for node, inside in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            # `from magneto import nn` names a unit, `from magneto.training import task` a module.
            short = base == "magneto" or base.count(".") == 1
            for alias in node.names:
                yield f"{base}.{alias.name}" if short else base, inside


def permitted(unit: str, target: str, lazily: bool) -> bool:
    """Return whether a unit may import a module of this package."""
    allowed = ALLOWED[unit] | {unit} | (LAZILY.get(unit, set()) if lazily else set())
    parts = target.split(".")
    return parts[1] in allowed or ".".join(parts[1:3]) in allowed


def test_imports_point_the_right_way() -> None:
    units = {path: unit_of(module_name(path)) for path in FILES}
    new = set(units.values()) - {*ALLOWED, *FREE}
    assert not new, f"{new}: say in tests/unit/test_imports.py what it may import"
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path, unit in units.items()
        if unit not in FREE
        for name, lazily in imports(path)
        if name.split(".")[0] == "magneto"
        and not permitted(unit, name, lazily)
        and (unit, name) not in FOR_TYPES
    ]
    assert not wrong, "\n".join(wrong)


def test_optional_packages_are_imported_inside_functions() -> None:
    """Not in hf: what lies there is for those who have transformers."""
    known = set(sys.stdlib_module_names) | CORE | {"magneto"}
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name} at its top"
        for path in FILES
        if not path.is_relative_to(SOURCE / "hf")
        for name, lazily in imports(path)
        if not lazily and name.split(".")[0] not in known
    ]
    assert not wrong, "\n".join(wrong)


def test_no_modules_of_a_package_import_each_other_in_a_circle() -> None:
    """Imports inside functions are left out."""
    imported = {
        module_name(path).removesuffix(".__init__"): {
            name for name, lazily in imports(path) if not lazily
        }
        for path in FILES
    }
    # Of `from magneto.nn import mask` and `... import Mask` only the first names a module.
    TopologicalSorter(
        {
            name: {other for other in imported.keys() & found if unit_of(other) == unit_of(name)}
            for name, found in imported.items()
        }
    ).prepare()  # raises CycleError, which names the modules


CONFIGURATIONS = [module_name(path) for path in FILES if path.name == "config.py"]


LIGHT = [
    "import magneto",
    "magneto.PLACEMENTS",
    "import magneto.cli",
    "import magneto.recipe, magneto.tasks, magneto.files, magneto.progress",
    "import magneto.theory.bounds, magneto.functional.statistics",
    f"import {', '.join(CONFIGURATIONS)}",
]
HEAVY = {"torch", "numpy", "transformers", "tokenizers", "sklearn", "matplotlib"}


def test_light_imports_load_no_torch() -> None:
    """One statement after the other in a new interpreter: the first that loads it is named."""
    lines = (f"{statement}\nprint({statement!r}, *sorted({HEAVY} & {{*sys.modules}}), sep='|')"
             for statement in LIGHT)  # fmt: skip
    words = [sys.executable, "-c", "\n".join(["import sys", *lines])]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == LIGHT


def test_every_public_name_resolves() -> None:
    import magneto

    assert all(getattr(magneto, name) is not None for name in magneto.__all__)
    assert set(magneto.__all__) <= set(dir(magneto))
