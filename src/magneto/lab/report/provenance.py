"""What is needed to repeat a comparison: command, versions, commits; no paths of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from magneto.training.environment import environment, read_environments

# What is kept of a run's environment. The command of a worker says nothing that the sweep does not.
KEPT = ("python", "packages", "processor", "cores", "threads", "gpus", "commit")
ABSOLUTE = re.compile(r"(?<![\w.:/])~?/(?:[^\s'\"/=,:]+/)*([^\s'\"/=,:]+)/?")


def environments(runs: Iterable[Path]) -> dict[str, list[str]]:
    """Return what the runs were made with: each thing with every value it had in one of them.

    Args:
        runs: Directories of runs; those without environment.json are left out. With none, this
            process's environment is returned.
    """
    records: list[Mapping[str, Any]] = []
    for path in sorted(run / "environment.json" for run in runs):
        if path.is_file():
            records += read_environments(path)
    found: dict[str, dict[str, None]] = {}
    for record in records or [environment()]:
        for name, value in _flat(record):
            found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items()}


def _flat(record: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield names and values of a run's environment, packages and GPUs one by one."""
    for key in KEPT:
        value = record.get(key)
        if isinstance(value, Mapping):
            yield from ((name, str(version)) for name, version in value.items() if version)
        elif isinstance(value, list):
            kinds = sorted(set(value))
            if kinds:
                yield key, ", ".join(f"{value.count(kind)} x {kind}" for kind in kinds)
        elif value not in (None, ""):
            yield key, str(value)


def without_places(value: Any) -> Any:
    """Return nested values with absolute paths in texts cut to their last name."""
    if isinstance(value, str):
        return ABSOLUTE.sub(r"\1", value)
    if isinstance(value, dict):
        return {key: without_places(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_places(part) for part in value]
    return value


def near_best(comparison: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the further seeds near each row's best rate, if there are any."""
    seeds = comparison.get("seeds_near_best") or ()
    return [("seeds near the best rate", ", ".join(map(str, seeds)))] if seeds else []


def facts(comparison: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and texts: what was compared, by which programs, on what machine.

    Args:
        comparison: What `compare.collect` returns.
    """
    cells = comparison["cells"]
    done = [cell for cell in cells if cell["status"] != "missing"]
    hours = sum(cell["seconds"] or 0 for cell in done) / 3600
    spent = f"{hours:.1f} hours" if hours >= 0.1 else f"{hours * 60:.1f} minutes"
    overrides = " ".join(f"--{key} {value}" for key, value in comparison["overrides"].items())
    return [
        ("recipe", str(comparison["recipe"])),
        ("changed in all runs", overrides or "nothing"),
        ("seeds", ", ".join(str(seed) for seed in comparison["seeds"])),
        *near_best(comparison),
        ("runs", f"{len(done)} of {len(cells)}; {spent} of training, one after the other"),
        ("summed up", str(comparison["created"])),
        *(
            (name, ", ".join(values) if isinstance(values, list) else str(values))
            for name, values in comparison["environment"].items()
        ),
    ]
