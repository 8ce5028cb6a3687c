"""Figures, times and names as parts of HTML.

Owns their markup, which browsers know by its attributes (`static/page.js`), and that all of it is escaped.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from markupsafe import Markup, escape

from arcbeam.model.texts import visible
from arcbeam.page.views import Cell
from arcbeam.sizes import remembered
from arcbeam.streaming.status.words import shown

_TIME: Final = re.compile(
    r"(?<![\w;'\"])\d{4}-\d\d-\d\d[ T](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?Z(?![\w&'\"])"
)
"""Quotes are escaped as `&#39;` and `&#34;`."""


def cell(value: Cell) -> Markup:
    """Return the content of a cell. A page has hundreds, so this is no macro, which takes five times as long."""
    return Markup(_escaped(value.text, value.hint, value.at, value.ago if value.at else ""))  # all parts are escaped


def clock(time: int) -> Markup:
    """Return a time to the second, in UTC: a browser with JavaScript shows it in its own time zone."""
    text = escape(shown(time - time % 1_000_000).replace(".000Z", "Z"))
    return Markup(f'<time data-clock="{time}" title="{text}">{text}</time>')  # it is escaped


def timed(text: str) -> Markup:
    """Return a text of ours, whose times a browser with JavaScript shows in its own time zone, with UTC as their hint.

    Times in quotes are the user's, and stay as they are.
    """
    found = escape(text)
    return Markup(_TIME.sub(_marked, found)) if "Z" in text else found  # it is escaped


def _marked(found: re.Match[str]) -> str:
    text = found[0]
    try:
        since = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
    except ValueError:
        return text  # there is no such day
    return f'<time data-clock="{since // timedelta(microseconds=1)}" title="{text}">{text}</time>'


@remembered(4096)
def _escaped(text: str, hint: str, at: int, ago: str) -> str:
    """Return the content of a cell. Many stages have the same figures."""
    content = str(timed(text))
    if at:
        content += f' <time data-at="{at}">{escape(ago)}</time>'
    if not hint:
        return content
    title = escape(hint)
    if text == "–":
        content += f'<span class="unseen"> {title}</span>'
    return f'<span title="{title}">{content}</span>'


@remembered(1024)
def parted(name: str) -> Markup:
    """Return the name of a transform, in which a line may break after a slash and before a parenthesis."""
    return Markup("/<wbr>").join(Markup("<wbr>(").join(part.split("(")) for part in name.split("/"))


def visible_value(value: object) -> object:
    """Return a value of a template; see `texts.visible`."""
    if not isinstance(value, str):
        return value
    # An escape has nothing that a browser would obey.
    return Markup(visible(value)) if isinstance(value, Markup) else visible(value)


def numbers(*values: Cell) -> Markup:
    """Return cells of a row."""
    return Markup("".join(f'<td class="number">{cell(value)}</td>' for value in values))  # they are escaped
