"""The one-minute form of `make torture`, and checks that it would see what it looks for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


def torture(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "torture.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


def counts(said: str) -> dict[str, int]:
    names = re.findall(r"^kind +(.*)$", said, re.MULTILINE)[0].split()
    return dict(zip(names, map(int, re.findall(r"^all +(.*)$", said, re.MULTILINE)[0].split()), strict=True))


def test_attack_sigkill_at_any_moment_and_file_operation():
    done = torture("--seed", "17", "--most", "70", "--skip", "ray,command,compare")
    assert done.returncode == 0, done.stdout + done.stderr
    found = counts(done.stdout)
    assert found["tried"] == 70
    assert found["kills"] >= 20
    assert (found["silent"], found["traceback"], found["hung"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("breakage", "case", "outcome"),
    [
        ("forget", "kill, serial, operation/scaffold/op 60 kill", "silent"),
        ("raise", "kill, serial, operation/scaffold/op 60 kill", "traceback"),
    ],
)
def test_a_broken_resume_is_seen(breakage, case, outcome):
    """A resume that forgets the state of the method, and one that raises an error that no rule foresees."""
    done = torture("--case", case, ARNO_TORTURE_BREAK=breakage)
    assert done.returncode == 1, done.stdout + done.stderr
    assert counts(done.stdout)[outcome] == 1
    assert f"repeat it: make torture ARGS=\"--seed 0 --case '{case}'\"" in done.stdout


def test_the_cases_are_those_of_the_seed():
    first, second, third = (torture("--list", "--share", "0.05", "--seed", seed).stdout for seed in "112")
    assert first == second != third
    assert len(first.splitlines()) > 100
