"""`arno reproduce` from the outside."""

import json
import re

import pytest


def test_the_list_and_a_figure_before_its_first_run(arno):
    listed = arno("reproduce").out
    assert "scaffold-table3-0  (0.4 h on two cores)" in listed
    assert "docs/results/reproduce.md has the verdicts" in listed
    assert "settings are those of a figure" in arno("reproduce", "rounds=3").error
    shown = arno("reproduce", "fedprox-figure1-90", "--show").out
    assert "each_round(mix(0.9, integers(1, 20), 20))" in shown
    assert "published 72.0 %" in shown
    assert "difference 0.03 to 0.25" in shown
    everything = arno("reproduce", "--show").out
    assert everything.count("- check: ") > 60
    assert "**Setting**: CIFAR-10, LeNet-5, 250 clients" in everything
    three = arno("reproduce", "scaffold-table3", "--show").out
    assert three.count("**Source**: Karimireddy et al., SCAFFOLD, ICML 2020, arXiv:1910.06378, table 3") == 3
    assert arno("reproduce", "scaffold-table3", "scaffold-table3-0", "--show").out == three, "each figure once"
    assert "3 figures need a folder each" in arno("reproduce", "scaffold-table3", "out=x").error
    assert "unknown figure 'scaffold-tables'" in arno("reproduce", "scaffold-tables").error
    assert "make results NAME=qrmix" in arno("reproduce", "qrmix-cifar10").error


@pytest.mark.slow
def test_a_figure_runs_prints_its_verdict_and_goes_on_where_it_was(arno, tmp_path):
    words = ("reproduce", "scaffold-figure3", "rounds=8", "--quick", "--jobs", "2", f"out={tmp_path / 'f'}")
    first = arno(*words)
    assert first.status == 1
    assert re.search(r"^# scaffold-figure3, other settings: \d+ of 17 checks hold$", first.out, re.M)
    assert "The settings differ from those of the figure" in first.out
    assert first.out.strip().endswith(str(tmp_path / "f"))
    record = json.loads((tmp_path / "f" / "reproduce.json").read_text())
    assert len(record["checks"]) == 17
    assert record["readings"]["SGD, G=1"]["decade"][0] == pytest.approx(22.4, abs=0.1), "(1 − η/2)² a round"
    assert (tmp_path / "f" / "reproduce.md").read_text() in first.out
    assert len([*(tmp_path / "f").glob("*/manifest.json")]) == 15
    again = arno(*words)
    assert "| SGD, G=1 |" in again.out
