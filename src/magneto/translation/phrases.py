"""Built-in parallel text: phrases in about 130 languages, from Babel and Unicode's CLDR.

A phrase is a date, an amount of money, a duration, a quantity, a percentage or a list of names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, timedelta
from functools import cache, partial
from typing import Any

import numpy as np

from magneto.files import import_extra

# Number of phrases, including phrases that a language lacks.
PHRASES = 12_000
SEED = 1
# Minimum numbers of names in Babel's data for a language, near the numbers for English.
LEAST_NAMES = {"territories": 200, "languages": 100, "unit_display_names": 80, "currencies": 100}

UNITS = (
    "length-kilometer", "length-meter", "length-centimeter", "mass-kilogram", "mass-gram",
    "volume-liter", "temperature-celsius", "area-square-kilometer", "speed-kilometer-per-hour",
    "duration-hour", "duration-minute", "duration-second", "digital-megabyte",
)  # fmt: skip
CURRENCIES = ("EUR", "USD", "GBP", "JPY", "CHF", "CNY", "INR", "BRL", "SEK", "PLN")
TERRITORIES = (
    "AR", "AT", "AU", "BE", "BG", "BR", "CA", "CH", "CL", "CN", "CU", "CZ", "DE", "DK", "EE", "EG",
    "ES", "ET", "FI", "FR", "GB", "GH", "GR", "HR", "HU", "ID", "IE", "IL", "IN", "IS", "IT", "JP",
    "KE", "KR", "LT", "LV", "MA", "MX", "NG", "NL", "NO", "NZ", "PE", "PH", "PK", "PL", "PT", "RO",
    "RU", "SE", "SK", "TH", "TR", "UA", "US", "VN", "ZA",
)  # fmt: skip
LANGUAGES = (
    "ar", "cs", "da", "de", "el", "en", "es", "et", "fi", "fr", "he", "hi", "hu", "id", "it", "ja",
    "ko", "nl", "no", "pl", "pt", "ru", "sv", "th", "tr", "uk", "vi", "zh",
)  # fmt: skip
STEPS = {"day": 86400, "week": 7 * 86400, "month": 30 * 86400, "year": 365 * 86400, "hour": 3600}

# Formats a phrase in a Babel locale; None if the locale lacks the words.
Format = Callable[[Any], str | None]


def phrase_languages() -> list[str]:
    babel = import_babel()
    found = []
    for name in sorted(babel.localedata.locale_identifiers()):
        if "_" in name:
            continue
        locale = babel.Locale.parse(name)
        if all(len(getattr(locale, table)) >= least for table, least in LEAST_NAMES.items()):
            found.append(name)
    return found


def phrases(first: str, second: str, count: int = PHRASES) -> Iterator[tuple[str, str]]:
    """Yield at most `count` phrases in two languages.

    Phrases that Babel lacks in one of the languages are skipped.
    """
    babel = import_babel()
    locales = babel.Locale.parse(first), babel.Locale.parse(second)
    random = np.random.default_rng(SEED)
    for _ in range(count):
        form = KINDS[random.integers(len(KINDS))](random)
        one, other = (form(locale) for locale in locales)
        if one and other:
            yield one, other


def _date(random: np.random.Generator) -> Format:
    day = date(1950, 1, 1) + timedelta(days=int(random.integers(36500)))
    form = ("full", "long", "medium")[random.integers(3)]
    return lambda locale: import_babel().dates.format_date(day, form, locale=locale)


def _month(random: np.random.Generator) -> Format:
    day = date(int(random.integers(1900, 2100)), int(random.integers(1, 13)), 1)
    return lambda locale: import_babel().dates.format_skeleton("yMMMM", day, locale=locale)


def _money(random: np.random.Generator) -> Format:
    amount, currency = _amount(random), CURRENCIES[random.integers(len(CURRENCIES))]
    return lambda locale: import_babel().numbers.format_currency(
        amount, currency, locale=locale, format_type="name", currency_digits=False
    )


def _quantity(random: np.random.Generator) -> Format:
    amount, unit = _amount(random), UNITS[random.integers(len(UNITS))]
    return lambda locale: _measure(locale, amount, unit)


def _quantities(random: np.random.Generator) -> Format:
    parts = [_quantity(random) for _ in range(random.integers(2, 4))]
    return lambda locale: _join(locale, [part(locale) for part in parts], "standard")


def _duration(random: np.random.Generator) -> Format:
    step = tuple(STEPS)[random.integers(len(STEPS))]
    sign = 1 if random.random() < 0.5 else -1
    span = timedelta(seconds=sign * STEPS[step] * int(random.integers(1, 60)))
    return lambda locale: import_babel().dates.format_timedelta(
        span, granularity=step, threshold=1000, add_direction=True, locale=locale
    )


def _share(random: np.random.Generator) -> Format:
    share = int(random.integers(1000)) / 1000
    return lambda locale: import_babel().numbers.format_percent(
        share, locale=locale, decimal_quantization=False
    )


def _names(random: np.random.Generator, codes: tuple[str, ...], table: str) -> Format:
    chosen = [codes[i] for i in random.choice(len(codes), random.integers(2, 5), replace=False)]
    style = ("standard", "or")[random.integers(2)]
    return lambda locale: _join(locale, [getattr(locale, table).get(c) for c in chosen], style)


KINDS = (
    _date, _month, _money, _quantity, _quantities, _duration, _share,
    partial(_names, codes=TERRITORIES, table="territories"),
    partial(_names, codes=LANGUAGES, table="languages"),
)  # fmt: skip


def _amount(random: np.random.Generator) -> float | int:
    whole = int(random.integers(1, 10 ** int(random.integers(1, 5))))
    return whole if random.random() < 0.7 else whole + int(random.integers(1, 10)) / 10


def _measure(locale: Any, amount: float, unit: str) -> str | None:
    text = import_babel().units.format_unit(amount, unit, "long", locale=locale)
    return None if unit in text else text  # Babel writes the unit's code if it lacks a pattern


def _join(locale: Any, parts: list[str | None], style: str) -> str | None:
    if style not in locale.list_patterns or None in parts:
        return None
    return import_babel().lists.format_list(parts, style, locale=locale)


@cache
def import_babel() -> Any:
    needs = "builtin:phrases needs Babel"
    for name in ("dates", "lists", "localedata", "numbers", "units"):
        import_extra(f"babel.{name}", "text", needs)
    return import_extra("babel", "text", needs)
