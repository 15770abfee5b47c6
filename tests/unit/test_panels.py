"""Panels as data: what is written is what is read, and what is no panel is refused."""

from __future__ import annotations

import json

import pytest

from arno.methods.panels import Chart, HeatMap, Line, curves_of, from_json, over_seeds, to_json
from arno.records.folder import RunFolder

CHART = Chart("Step", "text", [Line("a", [1, 2], [0.5, None], [0.4, 0.1], [0.6, 0.3])], "round", "norm", True, 0, 1.5)
HEAT = HeatMap("Held", "", [[1, None], [2, 3]], ["r", "s"], ["c", "d"], "x", "y", "z", [["", "1"], ["2", ""]], True)


def round_trip(values: object) -> object:
    return json.loads(json.dumps(values))


@pytest.mark.parametrize("panel", [CHART, HEAT])
def test_a_panel_survives_json(panel):
    read = from_json(round_trip(to_json(panel)))
    assert round_trip(to_json(read)) == round_trip(to_json(panel))
    assert type(read) is type(panel)


def test_a_chart_without_a_range_is_read_as_one_without_ends():
    values = to_json(CHART)
    del values["low"], values["high"]
    read = from_json(values)
    assert isinstance(read, Chart)
    assert (read.low, read.high) == (None, None)


@pytest.mark.parametrize(
    ("panel", "changes"),
    [
        (CHART, {"kind": "Pie"}),
        (CHART, {"kind": ["Chart"]}),
        (CHART, {"more": 1}),
        (CHART, {"title": 3}),
        (CHART, {"low": "0"}),
        (CHART, {"lines": 7}),
        (CHART, {"lines": [{"name": "a", "x": [1, 2], "y": [1]}]}),
        (CHART, {"lines": [{"name": "a", "x": [1], "y": ["<b>"]}]}),
        (CHART, {"lines": [{"name": "a", "x": [1], "y": [1], "low": [1, 2], "high": [1]}]}),
        (HEAT, {"cells": [[1, 2]]}),
        (HEAT, {"cells": [[1, 2], [3]]}),
        (HEAT, {"cells": [[1, 2], ["3", 4]]}),
        (HEAT, {"marks": [["a", "b"]]}),
        (HEAT, {"columns": [1, 2]}),
    ],
)
def test_what_is_no_panel_is_refused(panel, changes, tmp_path):
    values = to_json(panel) | changes
    with pytest.raises(ValueError, match="no panel"):
        from_json(values)
    (tmp_path / "panels.json").write_text(json.dumps([to_json(CHART), values]))
    assert RunFolder(tmp_path).panels() is None


@pytest.mark.parametrize("text", ["", "{", "3", "[3]", "null", '{"kind": "Chart"}'])
def test_a_file_without_panels_is_refused(text, tmp_path):
    (tmp_path / "panels.json").write_text(text)
    assert RunFolder(tmp_path).panels() is None


def test_the_panels_of_seeds_become_bands_of_known_points():
    nan = float("nan")
    one, two = (Chart("t", "", [Line("a", [1, 2, 3], y)], y="norm", low=0) for y in ([1.0, 2.0, nan], [3.0, None, 4.0]))
    merged = over_seeds([one, two])
    assert isinstance(merged, Chart)
    assert (merged.y, merged.low) == ("norm", 0)
    assert (merged.lines[0].x, merged.lines[0].y) == ([1], [2.0])
    alone = over_seeds([two])
    assert isinstance(alone, Chart)
    assert (alone.lines[0].x, alone.lines[0].y) == ([1, 3], [3.0, 4.0])
    assert over_seeds([HEAT, HEAT]) is HEAT
    rows = [{"round": 1, "n": nan}, {"round": 2, "n": 0.5}, {"round": 3, "n": None}]
    assert curves_of(rows, {"n": "‖c‖", "m": "absent"}) == [Line("‖c‖", [2], [0.5])]
