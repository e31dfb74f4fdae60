"""What MkDocs calls on every page: formulas become MathML, and what readers by ear need is added."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\(?:\((?P<inline>.*?)\\\)|\[(?P<block>.*?)\\\])</\1>', re.S
)


def on_page_content(html: str, **page: Any) -> str:
    """Set every formula of a page; a corner of a table in which nothing stands heads nothing."""
    return re.sub(r"<th([^>]*)>\s*</th>", r"<td\1></td>", FORMULA.sub(formula, html))


def on_post_page(output: str, **page: Any) -> str:
    """Name the theme's search dialog."""
    return output.replace('data-md-component="search" role="dialog"',
                          'data-md-component="search" role="dialog" aria-label="Search"')  # fmt: skip


def formula(found: re.Match[str]) -> str:
    """Return one formula as MathML, a displayed one as a block of its own: no script shows it."""
    text, display = found["inline"] or found["block"], found["block"] is not None
    made = convert(unescape(text).strip(), display="block" if display else "inline")
    return f'<div class="formula" tabindex="0">{made}</div>' if display else made
