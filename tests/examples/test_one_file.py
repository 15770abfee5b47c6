"""One file is enough: each example, put into a copy of the package as a single new file, is found by its name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: example: its file in the package, the registry, what it registers, and the decorator.
MOVED = {
    "my_method.py": ("methods", "from arno.methods import methods", "def factory", 'methods.register("mine")'),
    "my_data.py": (
        "data/sources",
        "from arno.data.dataset import datasets",
        "def factory",
        'datasets.register("mine")',
    ),
    "my_net.py": ("models", "from arno.models import models", "class Net", 'models.register("mine")'),
    "my_metric.py": ("tasks", "from arno.tasks import tasks", "def factory", 'tasks.register("mine")'),
    "my_engine.py": ("engines", "from arno.engines import engines", "def factory", 'engines.register("mine")'),
    "my_tracker.py": (
        "tracking",
        "from arno.tracking import trackers",
        "class CsvTracker",
        'trackers.register("mine", needs=())',
    ),
}


def test_each_example_is_one_file_of_the_package(tmp_path):
    package = tmp_path / "src" / "arno"
    shutil.copytree(ROOT / "src" / "arno", package, ignore=shutil.ignore_patterns("__pycache__"))
    for example, (folder, registry, what, decorator) in MOVED.items():
        text = (ROOT / "examples" / example).read_text()
        assert text.count(f"\n{what}(") == 1, example
        added = package / folder / "mine.py"
        assert not added.exists()
        added.write_text(text.replace(f"\n{what}(", f"\n{registry}\n\n@{decorator}\n{what}("))
    groups = ("method", "data", "task", "model", "engine")
    words = [f"{group}=mine" for group in groups]
    words += ["method.strength=0.5", "data.noise=0.2", "model.width=16", "engine.slowest=2", "track=mine@it.csv"]
    command = [sys.executable, "-m", "arno", "run", *words, "rounds=2", "clients=5", "out=it", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "it\n"
    manifest = json.loads((tmp_path / "it" / "manifest.json").read_text())
    assert manifest["engine"]["name"] == "timed"
    assert manifest["metrics"][0]["name"] == "test_balanced_accuracy"
    for group in groups:
        assert f"{group}=mine" in manifest["command"]
    assert "test_balanced_accuracy" in (tmp_path / "it.csv").read_text()
