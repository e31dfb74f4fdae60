"""MkDocs hooks: write formulas as MathML and add labels for screen readers."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\(?:\((?P<inline>.*?)\\\)|\[(?P<block>.*?)\\\])</\1>', re.S
)


def on_page_content(html: str, **page: Any) -> str:
    """Write a page's formulas as MathML; make empty table headings plain cells."""
    return re.sub(r"<th([^>]*)>\s*</th>", r"<td\1></td>", FORMULA.sub(formula, html))


def on_post_page(output: str, **page: Any) -> str:
    """Name the theme's search dialog."""
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="Search"')


def on_post_template(output: str, **template: Any) -> str:
    """Name the search dialog of the page for missing addresses, which is a template."""
    return on_post_page(output)


def formula(found: re.Match[str]) -> str:
    """Return a formula as MathML; a displayed formula is a block that the keyboard can scroll."""
    text, display = found["inline"] or found["block"], found["block"] is not None
    made = convert(unescape(text).strip(), display="block" if display else "inline")
    return f'<div class="formula" tabindex="0">{made}</div>' if display else made
