"""`magneto probe`: a prediction of whether a recipe will train."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from magneto.commands.shared import (
    Parser,
    aligned,
    answer,
    at_least_one,
    check_effect,
    check_folder,
    duration,
    names,
    read_as,
    sizes,
)
from magneto.config import ConfigError
from magneto.fields import NonNegativeInt
from magneto.files import plain, write_bytes, write_json
from magneto.progress import ProgressBars
from magneto.recipe import Recipe, load_recipe, placement_name
from magneto.theory.placement import Stack, find_placement

if TYPE_CHECKING:
    from magneto.lab.coordinates import Coordinate
    from magneto.lab.diagnosis import Diagnosis, Trial
    from magneto.lab.probe import LayerReading
    from magneto.lab.update import Bound, Growth, Update

MOST_LAYERS = 4096
# Maximum layers and depths in a table.
ROWS, COLUMNS = 9, 5
MARKS = {"sound": "ok", "not decided": "??", "likely to fail": "!!"}
READINGS = {"label": "a label's logit", "output": "the output"}
MEASURED_OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}


def parser() -> Parser:
    made = Parser(
        "probe",
        "Measure every layer of a model at initialisation and in the first training steps. Predict "
        "whether the recipe will train, and give reasons. No weights are kept.",
        "magneto probe causal-lm/tiny --model.layers 24 --placements post,sub",
        recipe=True,
    )
    add = made.add_argument
    add("recipe", help="name or path of a recipe")
    what = "norm placements, or module:NAME for your own placement (default: as in the recipe)"
    add("--placements", type=names, metavar="A,B", help=what)
    add("--steps", type=at_least_one, default=5, help="number of training steps")
    what = "also train for this time (such as 5m), and compare the score with a trivial baseline"
    add("--trial", type=duration, metavar="TIME", help=what)
    what = ("only measure how much one step changes the output of models with these numbers of "
            "layers (width 64, random inputs)")  # fmt: skip
    add("--depths", type=sizes, metavar="N,M", help=what)
    what = "stack for --depths: an encoder or a causal decoder"
    add("--stack", choices=("encoder", "decoder"), default="decoder", help=what)
    what = ("only measure how much training changes each layer's output, for these widths "
            "(coordinate check of muP)")  # fmt: skip
    add("--coordinates", type=sizes, metavar="N,M", help=what)
    what = ("number of seeds for measuring how much one step changes the output at several depths "
            "(default: 3, or 5 if --depths is given)")  # fmt: skip
    add("--seeds", type=read_as(NonNegativeInt), metavar="N", help=what)
    what = "folder for probe.json, and for the figure of --coordinates (default: none)"
    add("--out", type=Path, help=what)
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    command = parser()
    args, overrides = command.parse_with_overrides(words)
    if args.seeds == 0 and args.depths:
        command.error("--depths needs --seeds 1 or more")
    check_effect(words, ["steps", "trial"] if args.depths else [], "with --depths")
    check_effect(words, [] if args.depths else ["stack"], "without --depths")
    others = ("seeds", "depths", "trial", "placements")
    check_effect(words, others if args.coordinates else (), "with --coordinates")
    check_folder("--out", args.out)
    recipes = load_each(args.recipe, overrides, args.placements or ())
    progress, started = ProgressBars(), time.perf_counter()
    measure = measure_depths if args.depths else diagnose_each
    measure = measure_widths if args.coordinates else measure
    found, lines = measure(recipes, args, progress)
    progress.finish()
    value = plain({
        "recipe": args.recipe,
        "command": "magneto probe " + shlex.join(words),
        "seconds": round(time.perf_counter() - started, 1),
        **found,
    })  # fmt: skip
    if args.out:
        write_json(args.out / "probe.json", value)
    return answer(args, value, lines)


def load_each(name: str, overrides: dict[str, str], placements: Sequence[str]) -> list[Recipe]:
    if not placements:
        return [load_recipe(name, overrides)]
    rows = [find_placement(row).name for row in dict.fromkeys(placements)]
    return [load_recipe(name, {**overrides, "model.placement": row}) for row in rows]


def diagnose_each(
    recipes: list[Recipe], args: Any, progress: ProgressBars
) -> tuple[dict[str, Any], Iterator[str]]:
    from magneto.lab.diagnosis import diagnose, run_trial

    seeds = 3 if args.seeds is None else args.seeds
    found: list[Diagnosis] = []
    trials: list[Trial] = []
    for recipe in recipes:
        made = diagnose(recipe, steps=args.steps, seeds=seeds, progress=progress)
        progress.say(f"{made.placement.title}: {made.verdict.level}")
        found.append(made)
        if args.trial:
            trials.append(run_trial(recipe, args.trial, progress))
    value: dict[str, Any] = {"probes": [made.to_mapping() for made in found]}
    if trials:
        value["trials"] = [asdict(trial) for trial in trials]
    return value, diagnosis_lines(found, trials)


def measure_depths(
    recipes: list[Recipe], args: Any, progress: ProgressBars
) -> tuple[dict[str, Any], Iterator[str]]:
    from magneto.lab.update import bounds_over, growth, measure_growth, measured_shape

    depths = args.depths
    if depths[-1] > MOST_LAYERS:
        raise ConfigError([f"--depths must be at most {MOST_LAYERS}, not {depths[-1]}"])
    stack: Stack = args.stack
    if not placement_name(recipes[0].model):
        raise ConfigError([f"--depths: the model of {args.recipe} has no norm placement"])
    updates = [
        update
        for recipe in recipes
        for update in measure_growth(
            measured_shape(recipe.model), depths=depths, seeds=range(args.seeds or 5), stack=stack,
            progress=progress,
        )
    ]  # fmt: skip
    grown = growth(updates)
    bounds = {
        recipe.model.row.name: bounds_over(recipe.model.row, depths, stack) for recipe in recipes
    }
    value = {
        "stack": stack,
        "width": measured_shape(recipes[0].model).width,
        "depths": depths,
        "growth": [vars(part) for part in grown],
        "bounds": bounds,
        "updates": [vars(update) for update in updates],
    }
    return value, growth_tables(grown, updates, bounds, depths)


def measure_widths(
    recipes: list[Recipe], args: Any, progress: ProgressBars
) -> tuple[dict[str, Any], Iterator[str]]:
    from magneto.lab.coordinates import draw_coordinates, measure_coordinates

    widths = args.coordinates
    if not placement_name(recipes[0].model):
        raise ConfigError([f"--coordinates: the model of {args.recipe} has no Transformer stack"])
    found = measure_coordinates(recipes[0], widths, args.steps, progress)
    if args.out:
        write_bytes(args.out / "coordinates.svg", draw_coordinates(found, args.steps))
    value = {
        "widths": widths,
        "steps": args.steps,
        "coordinates": [{**asdict(each), "exponent": each.exponent} for each in found],
    }
    return value, coordinate_lines(found, widths, args.steps)


def coordinate_lines(
    found: Sequence[Coordinate], widths: Sequence[int], steps: int
) -> Iterator[str]:
    from magneto.lab.coordinates import FLAT

    shown = [found[place] for place in thin(len(found), ROWS)]
    head = [f"RMS change of the output after {steps} step{'s' if steps > 1 else ''}"]
    rows = [[*head, *map(str, widths), "grows as"]]
    for each in shown:
        values = [number(each.change[width]) for width in widths]
        rows.append([each.name, *values, f"width^{each.exponent:.2f}"])
    yield aligned(rows)
    yield ""
    broken = [each.name for each in found if math.isnan(each.exponent)]
    steep = [each for each in found if each.exponent > FLAT]
    if broken:
        yield f"No exponent for {', '.join(broken)}: the change is zero or not finite."
    if steep:
        most = max(steep, key=lambda each: each.exponent)
        yield (f"{len(steep)} of {len(found)} outputs change more at larger width. The growth is "
               f"fastest in {most.name}, as width^{most.exponent:.2f}. A learning rate that suits "
               f"width {widths[0]} is too large at width {widths[-1]}.")  # fmt: skip
    elif not broken:
        yield ("The change of every output grows at most in proportion to "
               f"width^{FLAT:g}. One learning rate may suit all these widths.")  # fmt: skip


def diagnosis_lines(found: Sequence[Diagnosis], trials: Sequence[Trial] = ()) -> Iterator[str]:
    for made, trial in zip_longest(found, trials):
        steps, level = made.run.steps, made.verdict.level
        layers = "+".join(map(str, made.layers))
        yield (f"\n{made.placement.title}, {layers} layers, "
               f"peak learning rate {made.learning_rate:g}\n")  # fmt: skip
        yield layer_table(steps[0].layers, steps[-1].layers, steps[-1].step) + "\n"
        yield f"  {bound_line(made.bound)}"
        yield from (f"  {line}" for line in growth_lines(made.growth))
        yield from (f"  {MARKS[each.level]} {each.text}" for each in made.verdict.findings)
        yield f"{made.placement.title}: {level}"
        if trial is not None:
            yield f"trial: {trial.text}"
    if len(found) > 1:
        yield from side_by_side(found)


def layer_table(first: Sequence[LayerReading], last: Sequence[LayerReading], step: int) -> str:
    span = f"1→{step}"
    lines = [["", "RMS", "token", "gradient", "update/", "largest", "entropy"],
             ["layer", span, "similarity", span, "weight", "logit", "(nats)"]]  # fmt: skip
    names = short_names([reading.name for reading in first])
    for place in thin(len(first), ROWS):
        a, b = first[place], last[place]
        lines.append([
            names[place],
            arrow(a.activation_rms, b.activation_rms),
            arrow(a.token_similarity, b.token_similarity),
            arrow(a.gradient_norm, b.gradient_norm, 2),
            number(b.update_ratio, 2),
            arrow(a.attention_logit_max, b.attention_logit_max, 2),
            arrow(a.attention_entropy, b.attention_entropy, 2),
        ])  # fmt: skip
    return aligned(lines)


def short_names(names: Sequence[str]) -> list[str]:
    # "decoder.layers.3" becomes "3", or "decoder 3" if there are several stacks.
    parts = [name.rpartition(".layers.") for name in names]
    if len({stack for stack, _, _ in parts}) == 1:
        return [index for _, _, index in parts]
    return [f"{stack.rpartition('.')[2]} {index}" for stack, _, index in parts]


def thin(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    return [round(part * (count - 1) / (most - 1)) for part in range(most)]


def number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def arrow(first: float | None, last: float | None, digits: int = 3) -> str:
    return f"{number(first, digits)}→{number(last, digits)}"


def bound_line(theory: Bound) -> str:
    if not theory.derived:
        return f"theory: {theory.note}"
    forms = ", ".join(f"{value:.3g} ({form})" for form, value in theory.derived.items())
    form, measured = next(iter(theory.measured.items()))
    note = f"; {theory.note}" if theory.note else ""
    return ("theory: the first SGD step changes a label's logit by at most about C x "
            f"learning rate x width, with C = {forms}. With the scales of this model's weights, "
            f"C = {measured:.3g} ({form}){note}")  # fmt: skip


def growth_lines(grown: Sequence[Growth]) -> Iterator[str]:
    for name, what in READINGS.items():
        parts = [part for part in grown if part.reading == name]
        if parts:
            low, high = parts[0].depths
            each = ", ".join(
                f"{growth_text(part)} under {MEASURED_OPTIMIZERS[part.optimizer]}" for part in parts
            )
            yield (f"measured: change of {what} in one step, with {high} layers relative to {low}: "
                   f"{each}")  # fmt: skip


def growth_text(part: Growth) -> str:
    low, high = part.ratio_range
    interval = f" [{low:.2g}, {high:.2g}]" if math.isfinite(low) else ""
    return f"x{part.ratio:.2g}{interval}"


def side_by_side(found: Sequence[Diagnosis]) -> Iterator[str]:
    from magneto.lab.verdict import kept_share, move_at, percent, rate_of_move

    lines = [["", "", "token variation", "change at", "rate for", "gradient"],
             ["", "verdict", "top/bottom", "rate 1e-4", "10 % change", "max/min"]]  # fmt: skip
    for made in found:
        tries = made.run.first_steps
        moved = move_at(tries, 1e-4)
        lines.append([
            made.placement.title,
            made.verdict.level,
            f"x{kept_share(made.run.first.layers):.3g}",
            "-" if moved is None else percent(moved),
            number(rate_of_move(tries, 0.1), 2),
            number(next(f.value for f in made.verdict.findings if f.name == "imbalance")),
        ])  # fmt: skip
    yield f"\nComparison\n\n{aligned(lines)}\n"
    for made in found:
        for reason in made.verdict.reasons if made.verdict.level != "sound" else []:
            yield f"{made.placement.title}: {reason}."
    if sound := [made.placement.title for made in found if made.verdict.level == "sound"]:
        yield f"No problem found in {', '.join(sound)}."


def growth_tables(
    grown: Sequence[Growth],
    updates: Sequence[Update],
    bounds: Mapping[str, Mapping[str, Sequence[float]]],
    depths: Sequence[int],
) -> Iterator[str]:
    places = thin(len(depths), COLUMNS)
    head = ["layers", *(str(depths[place]) for place in places), "growth"]
    for reading, what in READINGS.items():
        for optimizer in dict.fromkeys(part.optimizer for part in grown):
            lines = [[*head, "exponent"]]
            for part in grown:
                if (part.reading, part.optimizer) != (reading, optimizer):
                    continue
                kind = (part.placement, reading, optimizer)
                own = [u for u in updates if (u.placement, u.reading, u.optimizer) == kind]
                means = [math.exp(fmean(math.log(u.value) for u in own if u.layers == depths[p]))
                         for p in places]  # fmt: skip
                width = f"±{part.interval:.2f}" if math.isfinite(part.interval) else ""
                lines.append([find_placement(part.placement).title, *map(brief, means),
                              f"x{part.ratio:.2g}", f"{part.exponent:.2f}{width}"])  # fmt: skip
            name = MEASURED_OPTIMIZERS[optimizer]
            yield f"\nChange of {what} in one step of {name}, divided by the learning rate\n"
            yield aligned(lines)
    lines = [head]
    for name, forms in bounds.items():
        title = find_placement(name).title
        if not forms:
            lines.append([title, *("-" for _ in places), "none"])
        for form, values in forms.items():
            cells = [brief(values[place]) for place in places]
            lines.append([f"{title}, {form}", *cells, f"x{values[-1] / values[0]:.2g}"])
    yield (
        "\nTheory: bound on the change of a label's logit in one step of SGD, divided by learning "
        "rate x width\n"
    )
    yield aligned(lines)


def brief(value: float) -> str:
    return f"{value:.0f}" if 100 <= value < 1e6 else f"{value:.{3 if value >= 0.1 else 2}g}"
