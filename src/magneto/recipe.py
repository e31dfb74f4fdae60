"""Recipes: YAML files with the sections task, model, data and training.

Every run saves a copy of its recipe.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from magneto.config import (
    UNKNOWN,
    ConfigError,
    nearest,
    override,
    read_yaml,
    unknown_keys,
)
from magneto.fields import (
    NonNegativeInt,
    build,
    configuration,
    field_types,
    is_configuration,
    rule,
)
from magneto.files import write_text
from magneto.nn.config import TransformerConfig
from magneto.tasks import TASKS
from magneto.theory.placement import PLACEMENTS, VARIANTS
from magneto.training.config import TrainingConfig

if TYPE_CHECKING:
    from magneto.training.task import Task

SECTIONS = ("task", "seed", "model", "data", "training", "learning_rates")
RECIPES = Path(__file__).parent / "recipes"
RUN_FILE = "recipe.yaml"
# Specifications of a comparison and of a ladder, in their folders.
SPEC_FILE, LADDER_FILE = "sweep.json", "ladder.json"


@dataclass(frozen=True)
class Recipe:
    """Settings of a run.

    Attributes:
        name: Name or path of the recipe.
        task: Name in `magneto.tasks.TASKS`, or "package.module:Class".
        seed: Seed of weights, data order, dropout and splits.
        learning_rates: Peak learning rate by placement, used if `training.learning_rate` is null.
            The key "default" has the rate of all placements that are not listed.
    """

    name: str
    task: str
    seed: int
    model: Any
    data: Any
    training: TrainingConfig
    learning_rates: Mapping[str, float] = field(default_factory=dict)

    def build_task(self) -> Task:
        """Build the task without loading its data."""
        return task_class(self.task)(self.model, self.data, self.seed)

    def to_mapping(self) -> dict[str, Any]:
        values = asdict(self)
        return {key: values[key] for key in SECTIONS}

    def save(self, path: Path) -> None:
        text = f"# {self.name}\n" + yaml.safe_dump(self.to_mapping(), sort_keys=False)
        write_text(path, text)


@cache
def recipe_names() -> tuple[str, ...]:
    """Return the names of the built-in recipes, sorted."""
    names = (str(p.relative_to(RECIPES).with_suffix("")) for p in RECIPES.rglob("*.yaml"))
    return tuple(sorted(names))


def recipe_path(name: str) -> Path:
    """Return the path of a recipe's file.

    `name` is a recipe's name or path. A FileNotFoundError suggests the nearest name.
    """
    if name in recipe_names():
        return RECIPES / f"{name}.yaml"
    path = Path(name)
    if path.is_file():
        return path
    if (path / RUN_FILE).is_file():
        raise FileNotFoundError(f"{name} is a run. Its recipe is {path / RUN_FILE}")
    near = get_close_matches(name, recipe_names(), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "; `magneto recipes` lists all recipes"
    raise FileNotFoundError(f"no recipe {name}{hint}")


def load_recipe(name: str, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Load a recipe by name or path.

    `overrides` are values by dotted key, such as "training.steps".

    Raises:
        FileNotFoundError: If there is no such recipe.
        ConfigError: If the recipe has mistakes. The error lists all mistakes.
    """
    path = recipe_path(name)
    values = read_yaml(path)
    if not isinstance(values, Mapping):
        raise ConfigError([f"{path} is not a recipe: it must be a mapping"])
    make_importable(path, str(values.get("task", "")))
    return build_recipe(name, override(values, overrides or {}))


def make_importable(recipe: Path, task: str) -> None:
    """Make a task's module importable if it is in the recipe's folder."""
    package, folder = task.partition(":")[0].partition(".")[0], recipe.resolve().parent
    exists = (folder / f"{package}.py").is_file() or (folder / package / "__init__.py").is_file()
    if ":" in task and exists and find_spec(package) is None:
        sys.path.append(str(folder))
        # Ranks are separate processes.
        known = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{known}{os.pathsep}{folder}" if known else str(folder)


def build_recipe(name: str, values: Mapping[str, Any]) -> Recipe:
    """Build a recipe from nested mappings.

    Raises:
        ConfigError: If the recipe has mistakes. The error lists all mistakes.
    """
    model, data = config_classes(str(values.get("task", "")))
    kinds = {"model": model, "data": data, "training": TrainingConfig}
    known = [f"{key}.{name}" for key, kind in kinds.items() for name in field_types(kind)]
    own = {key: values[key] for key in ("seed", "learning_rates") if values.get(key) is not None}
    parts, problems = {}, _unknown_sections(values, known)
    for key, kind, part in (
        *((key, kind, values.get(key)) for key, kind in kinds.items()), ("", _TopLevel, own)
    ):  # fmt: skip
        try:
            parts[key] = build(kind, {} if part is None else part, key, known)
        except ConfigError as error:
            problems += error.lines
    if problems:
        raise ConfigError(sorted(problems, key=lambda line: not line.startswith(UNKNOWN)))
    seed, rates = parts[""].seed, parts.pop("").learning_rates
    if sizes := getattr(parts["data"], "stream_sizes", None):
        sizes(parts["training"].batch_size)  # refuses some batch sizes
    recipe = Recipe(name=name, task=str(values["task"]), seed=seed, learning_rates=rates, **parts)
    return _with_learning_rate(recipe)


@configuration
class _TopLevel:
    seed: NonNegativeInt = 1
    learning_rates: dict[str, float] = field(default_factory=dict)

    @rule
    def _placements_exist(self) -> Iterator[str]:
        known = [f"learning_rates.{name}" for name in ("default", *PLACEMENTS, *VARIANTS)]
        for name in self.learning_rates:
            key = f"learning_rates.{name}"
            if key not in known and ":" not in name:  # not an import path
                yield f"{UNKNOWN}{key}{nearest(key, known)}"


def _unknown_sections(values: Mapping[str, Any], known: Sequence[str]) -> list[str]:
    given = [
        f"{key}.{name}" if name else str(key)
        for key, value in values.items()
        if key not in SECTIONS
        for name in (value if isinstance(value, Mapping) and value else ("",))
    ]
    return [f"{UNKNOWN}{key}{nearest(key, [*SECTIONS, *known])}" for key in given]


def _with_learning_rate(recipe: Recipe) -> Recipe:
    if recipe.training.learning_rate is not None:
        return recipe
    row = placement_name(recipe.model)
    rates = recipe.learning_rates
    if row not in rates and "default" not in rates:
        lacking = f"learning_rates has no rate for {row or 'this model'}, only for "
        why = lacking + ", ".join(rates) if rates else "the recipe has no learning_rates"
        raise ConfigError([f"training.learning_rate is not set, and {why}."])
    rate = rates.get(row, rates.get("default"))
    return replace(recipe, training=replace(recipe.training, learning_rate=rate))


def placement_name(model: Any) -> str:
    """Return the name of a model's placement, or "" for a model without placement."""
    return model.row.name if isinstance(model, TransformerConfig) else ""


def task_class(name: str) -> type[Task]:
    """Return a task's class by name or import path.

    A ConfigError suggests the nearest name.
    """
    target = TASKS[name].task if name in TASKS else name
    if ":" not in target:
        near = nearest(name, list(TASKS))
        what = f"unknown task {name!r}{near}" if name else "the recipe has no task"
        known = f"known: {', '.join(TASKS)}, or module:Class for your own task"
        raise ConfigError([f"{what} ({known})"])
    module, attribute = target.split(":", 1)
    try:
        found = import_module(module)
    except (ImportError, TypeError, ValueError) as error:  # invalid module names: "", ".x"
        first, hint = module.partition(".")[0], ""
        if isinstance(error, ModuleNotFoundError) and error.name == first:
            hint = f"; add the folder of {first} to PYTHONPATH"
        raise ConfigError([f"task {name}: {error}{hint}"]) from error
    if not hasattr(found, attribute):
        hint = nearest(attribute, [key for key in vars(found) if not key.startswith("_")])
        lack = f"module {module} has no {attribute}{hint}" if attribute else "class name is missing"
        raise ConfigError([f"task {name}: {lack}"])
    return getattr(found, attribute)


def config_classes(name: str) -> tuple[type, type]:
    """Return the configuration classes of a task's sections `model` and `data`.

    A task named by import path has its configuration classes in the attributes ModelConfig and
    DataConfig. For a task in `TASKS`, torch is not imported.

    Raises:
        ConfigError: If there is no such task. The message suggests the nearest name.
    """
    if name in TASKS:
        entry = TASKS[name]
        module = import_module(f"{entry.task.partition(':')[0].rpartition('.')[0]}.config")
        model, data = (getattr(module, kind) for kind in entry.configs)
        return model, data
    task = task_class(name)
    wanted: list[Any] = [getattr(task, kind, None) for kind in ("ModelConfig", "DataConfig")]
    if not all(map(is_configuration, wanted)):
        raise ConfigError([f"the class of task {name} needs ModelConfig and DataConfig, two "
                           "classes decorated with magneto.fields.configuration"])  # fmt: skip
    if missing := sorted(getattr(task, "__abstractmethods__", ())):
        raise ConfigError([f"task {name} must define {', '.join(missing)}"])
    return wanted[0], wanted[1]


def open_run(run: Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Load the recipe of a run.

    Raises:
        FileNotFoundError: If the directory is not a run. The message suggests the nearest run.
        ConfigError: If the recipe is incomplete or has mistakes.
    """
    path = run / RUN_FILE
    if not path.is_file():
        for file, kind in ((SPEC_FILE, "comparison"), (LADDER_FILE, "ladder")):
            if (run / file).is_file():
                pages = {"report": run / "report.html", "best run": run / "best"}
                found = [f"its {name} is {page}" for name, page in pages.items() if page.exists()]
                raise FileNotFoundError("; ".join([f"{run} is a {kind}, not a run", *found]))
        beside = run.parent if run.parent.is_dir() else Path(".")
        runs = [p.name for p in beside.iterdir() if (p / RUN_FILE).is_file()]
        near = get_close_matches(run.name, runs, n=1, cutoff=0.4)
        hint = f"; did you mean {beside / near[0]}?" if near else ""
        raise FileNotFoundError(f"no run in {run} (there is no {RUN_FILE}){hint}")
    whole = {line.partition(":")[0] for line in path.read_text("utf-8", "replace").splitlines()}
    if missing := [name for name in SECTIONS if name not in whole]:
        raise ConfigError([f"{path} is incomplete or damaged: it has no {', '.join(missing)}"])
    try:
        return load_recipe(str(path), overrides)
    except ConfigError as error:
        own = ", ".join(key for key in unknown_keys(error) if key not in (overrides or {}))
        line = (f"{path} was edited, or written by another version of Magneto. Use the version "
                f"in environment.json, or remove {own}")  # fmt: skip
        raise ConfigError([*error.lines, *([line] if own else [])]) from error
