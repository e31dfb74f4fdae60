"""Markdown tables of `make bench`: fields, goals, profiles, scaling. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Found = dict[str, Any]
# The goals: the ratio of a step to the products alone, at these shapes of a causal language model;
# and the ratio of another library's step to ours, where so many tokens or more are predicted.
WITHIN, SHAPES = 1.25, ("6 x 256", "4 x 768")
AHEAD, LARGE = 1.10, 8000


def medians(cell: Found) -> dict[str, float]:
    """Return the median milliseconds of each contender."""
    return {row["contender"]: row["median_ms"] for row in cell["rows"]}


def conditions(result: Found) -> str:
    """Return machine, versions and commit of a measurement."""
    where = result["machine"]
    versions = ", ".join(f"{name} {v}" for name, v in where["packages"].items() if v)
    loads = [load for cell in result["cells"].values() for load in cell["load"]]
    return (
        f"{where['processor']}, {where['cores']} cores, {where['threads']} threads, fp32; Python "
        f"{where['python']}; {versions}; commit {result['commit']}; {where['date']}; load "
        f"{min(loads, default=0):.1f} to {max(loads, default=0):.1f}."
    )


def table(result: Found, cell: Found) -> Iterator[str]:
    """Yield a cell's table, the fastest first."""
    times = medians(cell)
    limit, reference = times.get(result["limit"]), times.get(result["reference"])
    yield (
        "| contender | ms | quartiles | relative to the products | relative to Magneto Sub-LN | "
        "MiB | parameters | steps |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for row in sorted(cell["rows"], key=lambda row: row["median_ms"]):
        own = row["contender"].startswith("magneto")
        name = f"**{row['contender']}**" if own else row["contender"]
        peak = row["peak_mib"]
        cells = [
            name,
            f"{row['median_ms']:.1f}",
            f"{row['quartile_1_ms']:.1f} to {row['quartile_3_ms']:.1f}",
            ratio(row["median_ms"], limit),
            ratio(row["median_ms"], reference),
            "" if peak is None else f"{peak:,.0f}",
            f"{row['parameters']:,}" if row["parameters"] else "",
            str(row["steps"]),
        ]
        yield f"| {' | '.join(cells)} |"
    for name, why in cell["left_out"].items():
        yield f"| {name} | {why} | | | | | | |"


def ratio(one: float, other: float | None) -> str:
    """Return the ratio of two times as text."""
    return f"{one / other:.2f}" if other else ""


def goals(result: Found) -> Iterator[str]:
    """Yield a table of the goals and whether the medians meet them."""
    yield "| goal | cell | measured | |"
    yield "|---|---|--:|---|"
    for cell in result["cells"].values():
        times, name = medians(cell), f"{cell['field']}, {cell['shape']}"
        own, limit = times.get(result["reference"]), times.get(result["limit"])
        if own and limit and cell["field"] == "causal-lm" and cell["shape"] in SHAPES:
            share = own / limit
            met = "met" if share <= WITHIN else "missed"
            yield f"| at most {WITHIN:.2f} times the products | {name} | {share:.2f} | {met} |"
        peers = {
            peer: time for peer, time in times.items()
            if peer in cell["peers"]
        }  # fmt: skip
        if own and peers and cell["outputs"] >= LARGE:
            best = min(peers, key=lambda peer: peers[peer])
            share = peers[best] / own
            met = "met" if share >= AHEAD else "missed"
            yield (f"| every other library takes {AHEAD:.2f} times Magneto's time or more | {name} "
                   f"| {share:.2f} ({best}) | {met} |")  # fmt: skip


def profile_table(result: Found) -> Iterator[str]:
    """Yield the shares of time of Magneto's step by kind of operation, a column per cell."""
    cells = [cell for cell in result["cells"].values() if "profile" in cell]
    if not cells:
        return
    kinds = list(dict.fromkeys(kind for cell in cells for kind in cell["profile"]["shares"]))
    yield f"| | {' | '.join(cell['field'] + ', ' + cell['shape'] for cell in cells)} |"
    yield f"|---|{'--:|' * len(cells)}"
    for kind in kinds:
        shares = [cell["profile"]["shares"].get(kind) for cell in cells]
        yield f"| {kind} | {' | '.join(percent(share) for share in shares)} |"


def percent(share: float | None) -> str:
    """Return a share in per cent, or an empty text."""
    return "" if share is None else f"{100 * share:.1f} %"


def sections(result: Found) -> Iterator[str]:
    """Yield everything below the title."""
    if not result["cells"]:
        yield "Nothing is measured yet."
        return
    yield conditions(result)
    yield ""
    yield "## Goals"
    yield ""
    yield from goals(result)
    fields = dict.fromkeys(cell["field"] for cell in result["cells"].values())
    for field in fields:
        yield ""
        yield f"## {field}"
        for cell in result["cells"].values():
            if cell["field"] == field:
                yield ""
                yield f"**{cell['shape']}**: {cell['sizes']}."
                yield ""
                yield from table(result, cell)
    profiles = list(profile_table(result))
    if profiles:
        yield ""
        yield "## Time of a step by kind of operation"
        yield ""
        yield (
            "Magneto with Sub-LN: shares of a step in torch's profiler. Each operation counts "
            "without the operations that it calls. Attention is torch's own kernel with its "
            "products. The products of the loss count as products."
        )
        yield ""
        yield from profiles
    yield ""
    yield "## Differences between contenders"
    yield ""
    yield from (f"- {name}: {note}." for name, note in result["notes"].items())


def markdown(result: Found) -> str:
    """Return the result as Markdown."""
    return "\n".join([f"# {result['name']}", "", *sections(result)]) + "\n"


def scaling_conditions(result: Found) -> str:
    """Return machine, versions and commit of the scaling curves."""
    where = result["machine"]
    loads = [curve["load"] for curve in result["curves"].values()]
    return (
        f"{where['processor']}, {where['cores']} cores, one thread for each process, fp32; Python "
        f"{where['python']}; torch {where['packages']['torch']}; commit {result['commit']}; "
        f"{where['date']}; load {min(loads):.1f} to {max(loads):.1f}."
    )


def slopes_table(result: Found) -> Iterator[str]:
    """Yield the measured and the expected slope of every scaling curve."""
    yield ("| size | time | time, two largest sizes | time, expected | memory | memory, expected | "
           "start-up | reason for the expected slopes |")  # fmt: skip
    yield "|---|--:|--:|---|--:|---|--:|---|"
    for name, curve in result["curves"].items():
        time, memory = (expected(pair) for pair in curve["expected"])
        slopes = curve["slopes"]
        yield (
            f"| {name} | {slopes['seconds']:.2f} | {curve['last_slopes']['seconds']:.2f} | {time} "
            f"| {slopes['peak_bytes']:.2f} | {memory} | {slopes['start_up']:.2f} | {curve['why']} |"
        )


def scaling_sections(result: Found) -> Iterator[str]:
    """Yield the scaling curves: slopes, then the points."""
    yield scaling_conditions(result)
    yield ""
    yield from slopes_table(result)
    for name, curve in result["curves"].items():
        yield ""
        yield f"Against {name}, with {curve['sizes']}:"
        yield ""
        yield f"| {curve['title']} | ms a step | slowest | MiB | start-up, s |"
        yield "|--:|--:|--:|--:|--:|"
        for point in curve["points"]:
            yield (
                f"| {point['size']} | {1e3 * point['seconds']:.1f} | "
                f"{1e3 * point['slowest']:.1f} | {point['peak_bytes'] / 2**20:,.0f} | "
                f"{point['start_up']:.1f} |"
            )


def expected(pair: list[float]) -> str:
    """Return a range of slopes as text."""
    low, high = pair
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def scaling_markdown(result: Found) -> str:
    """Return the scaling curves as a page."""
    return "\n".join([f"# {result['name']}", "", *scaling_sections(result)]) + "\n"
