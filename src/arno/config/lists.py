"""Several values in one setting: `a,b` and `0..4`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..errors import ArnoError

#: The largest number of values of a range.
MOST = 10_000


def values(text: str) -> Iterator[str]:
    """The values that a setting lists. Brackets and parentheses protect the commas within them.

    >>> list(values("0..2")), list(values("[8, 8],[16]"))
    (['0', '1', '2'], ['[8, 8]', '[16]'])
    """
    bounds = re.fullmatch(r"(-?\d{1,18})\.\.(-?\d{1,18})", text)
    if bounds:
        low, high = int(bounds[1]), int(bounds[2])
        if high < low:
            rule = "the first number must not be larger than the second"
            raise ArnoError(f"range {text}", rule, f"write {high}..{low}")
        if high - low >= MOST:
            raise ArnoError(f"range {text}", f"it has at most {MOST:,} values", f"write {low}..{low + MOST - 1}")
        yield from (str(i) for i in range(low, high + 1))
        return
    depth, value = 0, ""
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            yield value
            value = ""
        else:
            value += character
    yield value
