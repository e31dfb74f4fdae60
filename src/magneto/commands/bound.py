"""`magneto bound`: what the theory says of a placement at a depth, and how it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from magneto.commands.shared import Parser, print_json
from magneto.theory.bounds import (
    CROSS_ATTENTION,
    FORMS,
    Family,
    Form,
    bound,
    cross_attentions,
    encoder_decoder_bound,
    find_family,
    growth_exponent,
)
from magneto.theory.depth import Depth, Stack
from magneto.theory.placement import Placement, find_placement
from magneto.theory.scales import Scales, derived_scales

DOUBLINGS = (1, 2, 4, 8, 16)
MOST_LAYERS = 100_000
Given = float | list[float]


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "bound",
        "Bound one SGD step's change of the model's output at initialisation, divided by the\n"
        "learning rate and the width. An estimate of order: see the theory page of the docs.",
        "magneto bound --placement sub --layers 24",
    )
    add = made.add_argument
    add("--placement", default="sub", help="name of a placement (sub)")
    add("--layers", type=int, metavar="N", help="layers of an encoder or a decoder alone (12)")
    add("--encoder-layers", type=int, metavar="N", help="layers of the encoder")
    add("--decoder-layers", type=int, metavar="M", help="layers of the decoder")
    add("--form", choices=FORMS, help="one form; --json: the one `bound` is of (paper)")
    scale = "one number, or one per sublayer with commas; ENCODER/DECODER for two stacks"
    add("--v", help=f"scale of out_proj and fc2: {scale} (the placement's own gain)")
    add("--w", help="scale of v_proj and fc1, likewise")
    add("--cross-gain", type=float, metavar="G", help="v = w of cross-attention (as the others)")
    add(
        "--cross-attention",
        choices=tuple(CROSS_ATTENTION),
        help="which sublayer of a decoder layer it is: the second, or theorem 3's l %% 3 = 1",
    )
    return made.with_json()


@dataclass(frozen=True)
class Question:
    """What was asked, at any depth.

    Attributes:
        row: The placement.
        depths: Layers of each stack; two for an encoder-decoder.
        v: Scale of each stack's second matrices, or None for the derived one.
        w: Of its first matrices.
        cross_gain: Of cross-attention, or None for the same as the others.
        cross: Key of `CROSS_ATTENTION`.
    """

    row: Placement
    depths: dict[Stack, int]
    v: dict[Stack, Given]
    w: dict[Stack, Given]
    cross_gain: float | None
    cross: str

    @property
    def grows(self) -> bool:
        """False where scales are given one by one, for this depth only."""
        return not any(isinstance(part, list) for part in (*self.v.values(), *self.w.values()))

    def deeper(self, factor: int) -> Question:
        """Return the same question for stacks `factor` times as deep."""
        depths: dict[Stack, int] = {s: layers * factor for s, layers in self.depths.items()}
        return replace(self, depths=depths)

    def scales(self) -> dict[Stack, Scales]:
        """Return the scales of each stack."""
        made: dict[Stack, Scales] = {}
        for stack, layers in self.depths.items():
            other = sum(self.depths.values()) - layers
            depth = Depth(stack, layers, other)
            own = derived_scales(self.row, depth, cross_gain=self.cross_gain)
            v, w = self.v.get(stack, own.v), self.w.get(stack, own.w)
            made[stack] = Scales.of(depth.sublayers, v, w, own.alpha)
        return made

    def answer(self, form: Form) -> dict[str, float]:
        """Return the bound; of an encoder-decoder also its terms."""
        scales = self.scales()
        if len(scales) == 1:
            return {"bound": bound(self.row, *scales.values(), form=form)}
        cross = cross_attentions(self.depths["decoder"], self.cross)
        made = encoder_decoder_bound(self.row, **scales, cross=cross, form=form)
        terms = {"decoder": made.decoder, "encoder": made.encoder, "passed_on": made.passed_on}
        return {"bound": made.total, **terms}


def main(words: Sequence[str]) -> int:
    """Run the command."""
    command = parser()
    given = command.parse(words)
    row = find_placement(given.placement)
    family = find_family(row)
    depths = read_depths(command, given)
    if len(depths) == 1 and (given.cross_attention or given.cross_gain is not None):
        command.error("cross-attention needs both --encoder-layers and --decoder-layers")
    question = Question(
        row,
        depths,
        read_scales(command, "--v", given.v, depths),
        read_scales(command, "--w", given.w, depths),
        given.cross_gain,
        given.cross_attention or "second",
    )
    forms: list[Form] = [given.form] if given.form else list(family.backward)
    factors = [
        factor
        for factor in DOUBLINGS
        if factor == 1 or (question.grows and factor * max(depths.values()) <= MOST_LAYERS)
    ]
    rows = [question.deeper(factor) for factor in factors]
    values: dict[Form, list[float]] = {
        form: [part.answer(form)["bound"] for part in rows] for form in forms
    }
    if given.json:
        print_json(as_json(question, family, rows, values))
    else:
        print(as_text(question, family, rows, values))
    return 0


def read_depths(command: Parser, given: Any) -> dict[Stack, int]:
    """Return the layers of each stack."""
    stacks: dict[Stack, int | None] = {
        "encoder": given.encoder_layers,
        "decoder": given.decoder_layers,
    }
    depths: dict[Stack, int] = {s: layers for s, layers in stacks.items() if layers is not None}
    if given.layers is not None and depths:
        command.error("--layers is for one stack; give --encoder-layers and --decoder-layers alone")
    depths = depths or {"encoder": 12 if given.layers is None else given.layers}
    for layers in depths.values():
        if not 1 <= layers <= MOST_LAYERS:
            command.error(f"a stack has 1 to {MOST_LAYERS} layers, not {layers}")
    return depths


def read_scales(
    command: Parser, option: str, text: str | None, depths: dict[Stack, int]
) -> dict[Stack, Given]:
    """Read "1.5", "1,2,1,1" or "ENCODER/DECODER"."""
    if text is None:
        return {}
    parts = text.split("/")
    if len(parts) == 1:
        parts *= len(depths)
    if len(parts) != len(depths):
        command.error(f"{option} {text}: {len(parts)} stacks where there are {len(depths)}")
    read: dict[Stack, Given] = {}
    for stack, part in zip(depths, parts, strict=True):
        try:
            numbers = [float(number) for number in part.split(",")]
        except ValueError:
            command.error(f"{option} {text}: numbers with commas between them, not {part!r}")
        read[stack] = numbers[0] if len(numbers) == 1 else numbers
    return read


def as_json(
    question: Question, family: Family, rows: list[Question], values: dict[Form, list[float]]
) -> dict[str, Any]:
    """Return the answer for a program."""
    form = next(iter(values))
    return {
        **question.answer(form),
        "placement": question.row.name,
        "form": form,
        "forms": {name: bounds[0] for name, bounds in values.items()},
        **{f"{stack}_layers": layers for stack, layers in question.depths.items()},
        "scales": {
            stack: {"v": brief(part.v), "w": brief(part.w), "alpha": part.alpha}
            for stack, part in question.scales().items()
        },
        **({"cross_attention": question.cross} if len(question.depths) == 2 else {}),
        "depths": [
            {"layers": row.depths, **{name: values[name][place] for name in values}}
            for place, row in enumerate(rows)
        ],
        "growth_exponent": {name: exponent(rows, bounds) for name, bounds in values.items()},
        "family": family.name,
        "source": family.source,
        "note": family.note,
    }


def brief(scales: tuple[float, ...]) -> Given:
    """Return one number for scales that are all the same."""
    return scales[0] if len(set(scales)) == 1 else list(scales)


def exponent(rows: list[Question], bounds: list[float]) -> float | None:
    """Return the exponent of the bound's growth with depth; None for one depth."""
    layers = [sum(row.depths.values()) for row in rows]
    return growth_exponent(layers, bounds) if len(rows) > 1 else None


def as_text(
    question: Question, family: Family, rows: list[Question], values: dict[Form, list[float]]
) -> str:
    """Return the answer for a person."""
    table = [["layers", "v", "w", *values]]
    for place, row in enumerate(rows):
        scales = list(row.scales().values())
        table.append(
            [
                "/".join(str(layers) for layers in row.depths.values()),
                "/".join(shown(part.v) for part in scales),
                "/".join(shown(part.w) for part in scales),
                *(f"{bounds[place]:.4f}" for bounds in values.values()),
            ]
        )
    if len(rows) > 1:
        times = (f"x{bounds[-1] / bounds[0]:.2f}" for bounds in values.values())
        powers = (
            f"{round(exponent(rows, bounds) or 0.0, 2) + 0.0:.2f}" for bounds in values.values()
        )
        table += [["growth", "", "", *times], ["exponent", "", "", *powers]]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(map(str.rjust, cells, widths)) for cells in table]
    title = f"{question.row.title}, model update at initialisation / (learning rate x width)"
    return "\n".join([title, "", *lines, "", family.source, *filter(None, [family.note])])


def shown(scales: tuple[float, ...]) -> str:
    """Return the scale of all sublayers, or the range."""
    low, high = min(scales), max(scales)
    return f"{low:.4f}" if low == high else f"{low:.4g}..{high:.4g}"
