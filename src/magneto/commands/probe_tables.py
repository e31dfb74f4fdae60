"""What `magneto probe` prints for a person: tables and sentences, with rich."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from magneto.lab.diagnosis import Diagnosis
from magneto.lab.probe import LayerReading
from magneto.lab.trial import Trial
from magneto.lab.update import Bound, Growth, Update
from magneto.lab.verdict import Level, kept_share, move_at, percent, rate_of_move
from magneto.theory.placement import find_placement

# Layers, and depths, that a table shows at most.
ROWS, COLUMNS = 9, 5
STYLES: dict[Level, str] = {"sound": "green", "not decided": "yellow", "likely to fail": "red"}
READINGS = {"label": "a label's logit", "output": "the whole output"}
OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}


def print_diagnoses(found: Sequence[Diagnosis], trials: Sequence[Trial] = ()) -> None:
    """Print each recipe's layers and findings, and trial; several side by side at the end."""
    console = Console(highlight=False)
    for made, trial in zip_longest(found, trials):
        print_one(console, made)
        if trial is not None:
            console.print(f"[bold]trial[/bold]: {trial.text}", soft_wrap=True)
    if len(found) > 1:
        print_side_by_side(console, found)


def print_one(console: Console, made: Diagnosis) -> None:
    """Print one recipe: layers, theory, findings, verdict."""
    layers = "+".join(map(str, made.layers))
    steps = made.run.steps
    console.print(
        f"\n[bold]{made.placement.title}[/bold], {layers} layers, "
        f"peak learning rate {made.learning_rate:g}"
    )
    console.print(layer_table(steps[0].layers, steps[-1].layers, steps[-1].step))
    lines = [bound_line(made.bound), *growth_lines(made.growth)]
    lines += [f"{mark(f.level)} {f.text}" for f in made.verdict.findings]
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)
    level = made.verdict.level
    console.print(f"[bold {STYLES[level]}]{made.placement.title}: {level}[/]")


def mark(level: Level) -> str:
    """Return the sign in front of a finding."""
    sign = {"sound": "ok", "not decided": "??", "likely to fail": "!!"}[level]
    return f"[{STYLES[level]}]{sign}[/]"


def layer_table(first: Sequence[LayerReading], last: Sequence[LayerReading], step: int) -> Table:
    """Build the table of layers: at initialisation, and at the last step where it says so."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    heads = (
        "layer", f"RMS 1→{step}", "token\nsimilarity", f"gradient 1→{step}", "update/\nweight",
        "largest\nlogit", "entropy\n(nats)",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head == "layer" else "right", no_wrap=True)
    names = short_names([reading.name for reading in first])
    for place in thin(len(first), ROWS):
        a, b = first[place], last[place]
        table.add_row(
            names[place],
            arrow(a.activation_rms, b.activation_rms),
            arrow(a.token_similarity, b.token_similarity),
            arrow(a.gradient_norm, b.gradient_norm, 2),
            number(b.update_ratio, 2),
            arrow(a.attention_logit_max, b.attention_logit_max, 2),
            arrow(a.attention_entropy, b.attention_entropy, 2),
        )
    return table


def short_names(names: Sequence[str]) -> list[str]:
    """Return "3" for "decoder.layers.3", or "decoder 3" where there are several stacks."""
    parts = [name.rpartition(".layers.") for name in names]
    if len({stack for stack, _, _ in parts}) == 1:
        return [index for _, _, index in parts]
    return [f"{stack.rpartition('.')[2]} {index}" for stack, _, index in parts]


def thin(count: int, most: int) -> list[int]:
    """Choose at most so many of 0 .. count - 1, evenly, with both ends."""
    if count <= most:
        return list(range(count))
    return [round(part * (count - 1) / (most - 1)) for part in range(most)]


def number(value: float | None, digits: int = 3) -> str:
    """Write a number; a dash where nothing was measured."""
    return "-" if value is None else f"{value:.{digits}g}"


def arrow(first: float | None, last: float | None, digits: int = 3) -> str:
    """Write how a number went."""
    return f"{number(first, digits)}→{number(last, digits)}"


def bound_line(theory: Bound) -> str:
    """Write the theory's bound."""
    if not theory.derived:
        return f"theory: {theory.note}"
    forms = ", ".join(f"{theory.derived[form]:.3g} ({form})" for form in theory.derived)
    measured = next(iter(theory.measured.values()))
    note = f"; {theory.note}" if theory.note else ""
    return (
        f"theory, SGD: the update is at most about {forms} x rate x width; "
        f"{measured:.3g} with these weights' scales{note}"
    )


def growth_lines(grown: Sequence[Growth]) -> list[str]:
    """Write how the measured update grows with depth."""
    lines = []
    for name, what in READINGS.items():
        parts = [part for part in grown if part.reading == name]
        if parts:
            low, high = parts[0].depths
            each = ", ".join(
                f"{growth_text(part)} under {OPTIMIZERS[part.optimizer]}" for part in parts
            )
            lines.append(f"measured: {high} layers beside {low}, one step moves {what} {each}")
    return lines


def growth_text(part: Growth) -> str:
    """Write a growth with its interval: "x2.4 [1.3, 4.4]"."""
    low, high = part.ratio_range
    return (
        f"x{part.ratio:.2g} \\[{low:.2g}, {high:.2g}]"
        if math.isfinite(low)
        else f"x{part.ratio:.2g}"
    )


def print_side_by_side(console: Console, found: Sequence[Diagnosis]) -> None:
    """Print one row per recipe, and why they differ."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    heads = (
        "", "verdict", "distinct\ntop/bottom", "moved by\n1e-4", "rate that\nmoves 10 %",
        "gradient\nmax/min",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    console.print("\n[bold]Side by side[/bold]")
    for made in found:
        tries, level = made.run.first_steps, made.verdict.level
        moved = move_at(tries, 1e-4)
        table.add_row(
            made.placement.title,
            f"[{STYLES[level]}]{level}[/]",
            f"x{kept_share(made.run.first.layers):.3g}",
            "-" if moved is None else percent(moved),
            number(rate_of_move(tries, 0.1), 2),
            number(next(f.value for f in made.verdict.findings if f.name == "imbalance")),
        )
    console.print(table)
    for made in found:
        for reason in made.verdict.reasons if made.verdict.level != "sound" else []:
            console.print(f"{made.placement.title}: {reason}.", soft_wrap=True)
    sound = [made.placement.title for made in found if made.verdict.level == "sound"]
    if sound:
        console.print(f"Nothing speaks against {', '.join(sound)}.", soft_wrap=True)


def print_growth(
    grown: Sequence[Growth],
    updates: Sequence[Update],
    bounds: dict[str, dict[str, list[float]]],
    depths: Sequence[int],
) -> None:
    """Print one table per reading and optimizer, and the bound's."""
    console = Console(highlight=False)
    for reading, what in READINGS.items():
        for optimizer in dict.fromkeys(part.optimizer for part in grown):
            parts = [g for g in grown if (g.reading, g.optimizer) == (reading, optimizer)]
            title = f"One step of {OPTIMIZERS[optimizer]} moves {what}, per learning rate"
            console.print(f"\n[bold]{title}[/bold]")
            console.print(growth_table(parts, updates, depths))
    console.print("\n[bold]Theory: bound of a label's logit under SGD, / (rate x width)[/bold]")
    console.print(bounds_table(bounds, depths))


def depth_table(heads: Sequence[str]) -> Table:
    """Build an empty table with names on the left and numbers on the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for head in ("layers", *heads):
        table.add_column(head, justify="left" if head == "layers" else "right", no_wrap=True)
    return table


def growth_table(
    parts: Sequence[Growth], updates: Sequence[Update], depths: Sequence[int]
) -> Table:
    """Build the table of one reading and optimizer: geometric means over seeds."""
    shown = [depths[place] for place in thin(len(depths), COLUMNS)]
    table = depth_table((*map(str, shown), "growth", "exponent"))
    for part in parts:
        kind = (part.placement, part.reading, part.optimizer)
        own = [u for u in updates if (u.placement, u.reading, u.optimizer) == kind]
        means = [geometric([u.value for u in own if u.layers == d]) for d in shown]
        width = f"±{part.interval:.2f}" if math.isfinite(part.interval) else ""
        cells = [*map(brief, means), f"x{part.ratio:.2g}", f"{part.exponent:.2f}{width}"]
        table.add_row(find_placement(part.placement).title, *cells)
    return table


def bounds_table(bounds: dict[str, dict[str, list[float]]], depths: Sequence[int]) -> Table:
    """Build the table of what the theory bounds."""
    places = thin(len(depths), COLUMNS)
    table = depth_table((*(str(depths[place]) for place in places), "growth"))
    for name, forms in bounds.items():
        title = find_placement(name).title
        if not forms:
            table.add_row(title, *("-" for _ in places), "none")
        for form, values in forms.items():
            growth = f"x{values[-1] / values[0]:.2g}"
            table.add_row(f"{title}, {form}", *(brief(values[p]) for p in places), growth)
    return table


def brief(value: float) -> str:
    """Write a positive number in about five characters."""
    return f"{value:.0f}" if 100 <= value < 1e6 else f"{value:.{3 if value >= 0.1 else 2}g}"


def geometric(values: Sequence[float]) -> float:
    """Return the geometric mean of positive values."""
    return math.exp(fmean(map(math.log, values)))
