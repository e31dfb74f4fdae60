"""Set the formulas of the documentation as MathML, so that a page needs no script to show them."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\(?:\((?P<inline>.*?)\\\)|\[(?P<block>.*?)\\\])</\1>', re.S
)


def on_page_content(html: str, **page: Any) -> str:
    """Replace every formula of a page; MkDocs calls this."""
    return FORMULA.sub(formula, html)


def formula(found: re.Match[str]) -> str:
    """Return one formula as MathML, a displayed one as a block of its own."""
    text, display = found["inline"] or found["block"], found["block"] is not None
    made = convert(unescape(text).strip(), display="block" if display else "inline")
    return f'<div class="formula">{made}</div>' if display else made
