"""The commands and programs of the tutorials run as they are written, with fewer rounds, seeds and trials."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from arno.cli import main

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
FEWER = {r"rounds=20": "rounds=4", r"seed=0\.\.4": "seed=0..1", r"--trials 8": "--trials 2"}
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    done = 0
    for file, kind, text in re.findall(r"(?:`(\w+\.py)`[^`]*\n\n)?```(python|sh)\n(.*?)```", page.read_text(), re.S):
        for more, less in FEWER.items():
            text = re.sub(more, less, text)
        if kind == "sh":
            for line in text.splitlines():
                command, *arguments = shlex.split(line, comments=True)
                assert command == "arno"
                with pytest.raises(SystemExit) as ended:
                    main(arguments)
                assert not ended.value.code, (line, capsys.readouterr())
                done += 1
        elif file:
            Path(file).write_text(text)
        else:
            exec(text, {})
    assert done >= 2
