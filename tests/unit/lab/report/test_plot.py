"""Styles of placements are distinct with any colour vision; figures fit a page."""

import itertools
import math

import numpy as np
import pytest

from magneto.lab.report.plot import ROWS, Series, series_of, swatch
from magneto.theory.placement import PLACEMENTS

PAGES = {"light": "#ffffff", "dark": "#161616"}
# Machado, Oliveira and Fernandes 2009, severity 1, on linear light.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
         [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
     [0.0193339, 0.1191920, 0.9503041]]
)  # fmt: skip
OWN = [f"mine{i}" for i in range(8)]


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> tuple[float, float, float]:
    xyz = TO_XYZ @ np.clip(light, 0, 1) / TO_XYZ.sum(1)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return float(116 * y - 16), float(500 * (x - y)), float(200 * (y - z))


def ciede2000(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    (l1, a1, b1), (l2, a2, b2) = first, second
    mean = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    g = 0.5 * (1 - math.sqrt(mean**7 / (mean**7 + 25**7)))
    a1, a2 = a1 * (1 + g), a2 * (1 + g)
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = math.degrees(math.atan2(b1, a1)) % 360, math.degrees(math.atan2(b2, a2)) % 360
    turn = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    hue = h1 + h2 if c1 * c2 == 0 else (h1 + turn / 2) % 360
    dh = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    l, c = (l1 + l2) / 2, (c1 + c2) / 2  # noqa: E741
    t = (
        1 - 0.17 * math.cos(math.radians(hue - 30)) + 0.24 * math.cos(math.radians(2 * hue))
        + 0.32 * math.cos(math.radians(3 * hue + 6)) - 0.2 * math.cos(math.radians(4 * hue - 63))
    )  # fmt: skip
    sl = 1 + 0.015 * (l - 50) ** 2 / math.sqrt(20 + (l - 50) ** 2)
    sc, sh = 1 + 0.045 * c, 1 + 0.015 * c * t
    turned = -math.sin(math.radians(60 * math.exp(-(((hue - 275) / 25) ** 2))))
    rt = 2 * math.sqrt(c**7 / (c**7 + 25**7)) * turned
    dl, dc, dh = (l2 - l1) / sl, (c2 - c1) / sc, dh / sh
    return math.sqrt(dl**2 + dc**2 + dh**2 + rt * dc * dh)


@pytest.mark.parametrize(
    ("first", "second", "known"),
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((50, 2.5, 0), (58, 24, 15), 19.4535),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
        ((6.7747, -0.2908, -2.4247), (5.8714, -0.0985, -2.2286), 0.6377),
    ],
)
def test_the_distance_is_the_published_one(first: tuple, second: tuple, known: float) -> None:
    """The values are those of Sharma, Wu and Dalal (2005)."""
    assert ciede2000(first, second) == pytest.approx(known, abs=1e-4)


def least_distance(first: Series, second: Series, theme: str) -> float:
    colours = [linear(getattr(row, theme)) for row in (first, second)]
    return min(ciede2000(*(lab(seen @ c) for c in colours)) for seen in VISIONS.values())


def contrast(colour: str, page: str) -> float:
    low, high = sorted(float(TO_XYZ[1] @ linear(c)) + 0.05 for c in (colour, page))
    return high / low


@pytest.mark.parametrize("theme", PAGES)
def test_rows_are_told_apart_with_any_colour_vision(theme: str) -> None:
    """Built-in rows by their colours, a user's also by marker and dash; all stand out."""
    rows = series_of([*ROWS, *OWN], {}).values()
    for a, b in itertools.combinations(rows, 2):
        apart = a.marker != b.marker and a.dash != b.dash and {a.name, b.name} & {*OWN}
        assert apart or least_distance(a, b, theme) > 12, (a.name, b.name)
    for row in rows:
        assert contrast(getattr(row, theme), PAGES[theme]) >= 3, row.name


def test_a_swatch_has_the_dashes_of_its_row() -> None:
    rows = series_of(["post", "sub"], {})
    assert "stroke-dasharray: 9 2.7" in swatch(rows["post"])
    assert "stroke-dasharray: none" in swatch(rows["sub"])


def test_every_placement_that_is_compared_has_a_row() -> None:
    assert set(PLACEMENTS) | {"hybrid-star"} <= set(ROWS)
