"""The table of attacks in SECURITY.md names tests that exist, one of them with words of the attack in its name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Words that tell no attack from another.
PLAIN = {"that", "with", "them", "then", "where", "what", "names", "file", "files", "arno", "test", "attack", "behind"}


def test_every_attack_has_a_test_with_its_name():
    lines = (ROOT / "SECURITY.md").read_text().split("## What was attacked")[1].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    rows = [row for row in rows if not row[0].startswith("---")]
    assert len(rows) >= 20
    for attack, tests in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
        words = {word for word in re.findall(r"[a-z0-9]{4,}", attack.lower().replace("-", " ")) if word not in PLAIN}
        assert any(word.rstrip("s") in name for word in words for _, name in named), attack
        for file, name in named:
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{attack}: {file}::{name}"
