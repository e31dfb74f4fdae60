"""`magneto bound`: the theoretical bound on the first model update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magneto.commands.shared import Parser, aligned, answer
from magneto.theory.bounds import (
    CROSS_ATTENTION,
    Scales,
    bound,
    derived_scales,
    encoder_decoder_bound,
    find_family,
    growth_exponent,
)
from magneto.theory.placement import Depth, Placement, Stack, find_placement

DOUBLINGS = (1, 2, 4, 8, 16)
MOST_LAYERS = 100_000
# A scale of all sublayers, or one for each.
Given = float | list[float]


def parser() -> Parser:
    made = Parser(
        "bound",
        "Print a theoretical bound on how much the first SGD step changes the model's output. The "
        "bound is divided by learning rate and width. The bound shows only the order of "
        "magnitude (see the theory page of the documentation).",
        "magneto bound --placement sub --layers 24",
    )
    add = made.add_argument
    add("--placement", default="sub", metavar="NAME", help="norm placement")
    add("--layers", type=int, help="number of layers of a single stack (default: 12)")
    add("--encoder-layers", type=int, help="number of encoder layers of an encoder-decoder")
    what = "number of decoder layers of an encoder-decoder"
    add("--decoder-layers", type=int, metavar="M", help=what)
    scale = "one number, or one per sublayer (A,B,...); ENCODER/DECODER for two stacks"
    add("--v", help=f"scale of out_proj and fc2: {scale} (default: the placement's gain)")
    add("--w", help="scale of v_proj and fc1, in the format of --v (default: the placement's gain)")
    what = "scale of the projections in cross-attention (default: as in the other sublayers)"
    add("--cross-gain", type=float, metavar="G", help=what)
    what = ("second: cross-attention is the second sublayer of each decoder layer; paper: it is "
            "the first sublayer, as in theorem 3.3 of the paper (default: second)")  # fmt: skip
    add("--cross-attention", choices=tuple(CROSS_ATTENTION), help=what)
    return made.with_json()


def main(words: Sequence[str]) -> int:
    command = parser()
    args = command.parse(words)
    row = find_placement(args.placement)
    family = find_family(row)
    depths = read_depths(command, args)
    if len(depths) == 1 and (args.cross_attention or args.cross_gain is not None):
        command.error(
            "--cross-attention and --cross-gain need both --encoder-layers and --decoder-layers"
        )
    v, w = (read_scales(command, f"--{name}", getattr(args, name), depths) for name in "vw")
    # Scales given per sublayer hold for one depth only.
    grows = not any(isinstance(part, list) for part in (*v.values(), *w.values()))
    deeper: list[dict[Stack, int]] = [{stack: layers * factor for stack, layers in depths.items()}
              for factor in (DOUBLINGS if grows else DOUBLINGS[:1])]  # fmt: skip
    deeper = [each for each in deeper if each == depths or max(each.values()) <= MOST_LAYERS]
    scales = [stack_scales(row, each, v, w, args.cross_gain) for each in deeper]
    cross = args.cross_attention or "second"
    bounds = {form: [bound_terms(row, each, cross, form) for each in scales]
              for form in family.backward}  # fmt: skip
    totals = {form: [each["bound"] for each in terms] for form, terms in bounds.items()}
    exponents = dict.fromkeys(totals)
    if len(deeper) > 1:
        layers = [sum(each.values()) for each in deeper]
        exponents = {form: growth_exponent(layers, values) for form, values in totals.items()}
    value = {
        **bounds["paper"][0],
        "placement": row.name,
        "forms": {form: values[0] for form, values in totals.items()},
        **{f"{stack}_layers": layers for stack, layers in depths.items()},
        "scales": {
            stack: {"v": brief(part.v), "w": brief(part.w), "alpha": part.alpha}
            for stack, part in scales[0].items()
        },
        **({"cross_attention": cross} if len(depths) == 2 else {}),
        "depths": [
            {"layers": each, **{form: values[place] for form, values in totals.items()}}
            for place, each in enumerate(deeper)
        ],
        "growth_exponent": exponents,
        "family": family.name, "source": family.source, "note": family.note,
    }  # fmt: skip
    lines = [["layers", "v", "w", *totals]]
    for place, each in enumerate(deeper):
        parts = scales[place].values()
        lines.append([
            "/".join(map(str, each.values())), "/".join(shown(part.v) for part in parts),
            "/".join(shown(part.w) for part in parts),
            *(f"{values[place]:.4f}" for values in totals.values()),
        ])  # fmt: skip
    if len(deeper) > 1:
        times = [f"x{values[-1] / values[0]:.2f}" for values in totals.values()]
        powers = [f"{round(power or 0.0, 2) + 0.0:.2f}" for power in exponents.values()]
        lines += [["growth", "", "", *times], ["exponent", "", "", *powers]]
    title = f"{row.title}: bound on the first model update, divided by learning rate x width\n"
    return answer(
        args, value, [title, aligned(lines), "", family.source, *filter(None, [family.note])]
    )


def read_depths(command: Parser, args: Any) -> dict[Stack, int]:
    stacks: dict[Stack, int | None] = {
        "encoder": args.encoder_layers,
        "decoder": args.decoder_layers,
    }
    depths: dict[Stack, int] = {s: layers for s, layers in stacks.items() if layers is not None}
    if args.layers is not None and depths:
        command.error("omit --layers if --encoder-layers or --decoder-layers is given")
    depths = depths or {"encoder": 12 if args.layers is None else args.layers}
    for layers in depths.values():
        if not 1 <= layers <= MOST_LAYERS:
            command.error(f"a stack must have 1 to {MOST_LAYERS} layers, not {layers}")
    return depths


def read_scales(
    command: Parser, option: str, text: str | None, depths: Mapping[Stack, int]
) -> dict[Stack, Given]:
    if text is None:
        return {}
    parts = text.split("/")
    if len(parts) == 1:
        parts *= len(depths)
    if len(parts) != len(depths):
        command.error(
            f"{option} {text} has scales for {len(parts)} stacks, but the model has {len(depths)}"
        )
    read: dict[Stack, Given] = {}
    for stack, part in zip(depths, parts, strict=True):
        try:
            numbers = [float(number) for number in part.split(",")]
        except ValueError:
            command.error(f"{option} {text} needs comma-separated numbers, not {part!r}")
        read[stack] = numbers[0] if len(numbers) == 1 else numbers
    return read


def stack_scales(
    row: Placement,
    depths: Mapping[Stack, int],
    v: Mapping[Stack, Given],
    w: Mapping[Stack, Given],
    cross_gain: float | None,
) -> dict[Stack, Scales]:
    made: dict[Stack, Scales] = {}
    for stack, layers in depths.items():
        depth = Depth(stack, layers, sum(depths.values()) - layers)
        own = derived_scales(row, depth, cross_gain=cross_gain)
        values = v.get(stack, own.v), w.get(stack, own.w)
        made[stack] = Scales.of(depth.sublayers, *values, own.alpha)
    return made


def bound_terms(
    row: Placement, scales: Mapping[Stack, Scales], cross: str, form: Any
) -> dict[str, float]:
    if len(scales) == 1:
        return {"bound": bound(row, *scales.values(), form=form)}
    made = encoder_decoder_bound(row, **scales, cross=cross, form=form)
    terms = {"decoder": made.decoder, "encoder": made.encoder, "passed_on": made.passed_on}
    return {"bound": made.total, **terms}


def brief(scales: tuple[float, ...]) -> Given:
    return scales[0] if len(set(scales)) == 1 else list(scales)


def shown(scales: tuple[float, ...]) -> str:
    low, high = min(scales), max(scales)
    return f"{low:.4f}" if low == high else f"{low:.4g}..{high:.4g}"
