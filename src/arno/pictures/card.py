"""What notebooks show for a run, a comparison, a partition or data: a heading, facts, a table and a picture."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from html import escape
from typing import Any

from .figure import png


def card(heading: str, facts: Mapping[str, object], table: str = "", figure: Any = None) -> str:
    """The HTML of a card. `table` must be HTML; all other texts are escaped.

    >>> card("Run", {"rounds": "<2>"})
    '<div><strong>Run</strong><table><tr><th>rounds</th><td>&lt;2&gt;</td></tr></table></div>'
    """
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in facts.items())
    image = ""
    if figure is not None:
        image = f'<img alt="{escape(heading)}" src="data:image/png;base64,{b64encode(png(figure)).decode()}">'
    return f"<div><strong>{escape(heading)}</strong><table>{rows}</table>{table}{image}</div>"
