"""The table of attacks in SECURITY.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_attack_has_a_test_with_its_name():
    lines = (ROOT / "SECURITY.md").read_text().split("## What was attacked")[1].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    rows = [row for row in rows if not row[0].startswith("---")]
    assert len(rows) >= 20
    for attack, tests in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
        assert named, attack
        for file, name in named:
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{attack}: {file}::{name}"
