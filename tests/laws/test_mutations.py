"""A law that no mistake can break is no law: every broken copy of a core line must be noticed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="mutants run in forked children")
def test_every_broken_line_is_noticed():
    driver = Path(__file__).with_name("mutate.py")
    done = subprocess.run([sys.executable, str(driver)], capture_output=True, text=True, timeout=900)
    lines = done.stdout.splitlines()
    assert len(lines) > 40, done.stderr
    assert not [line for line in lines if not line.startswith("killed")], done.stderr
