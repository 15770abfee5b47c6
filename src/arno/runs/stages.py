"""Stages: configurations that run one after another; each stage starts from the model of the previous stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import settings as configs
from ..errors import ArnoError
from ..records.folder import RunFolder
from .run import execute, resume
from .trust import check, targets


def run_stages(files: Sequence[str], overrides: Sequence[str], progress: Any) -> Any:
    """Run configurations one after another; each starts from the model of the previous one.

    `rounds` of a stage counts its own rounds and those of all earlier stages. With `out=DIR` the stages are in the
    folders `DIR/stage1`, `DIR/stage2`, …; finished stages are not run again.
    """
    out = next((text.partition("=")[2] for text in overrides if text.startswith("out=")), None)
    plan, before = [], 0
    for i, file in enumerate(files, 1):
        base = configs.read(Path(file))
        config = configs.plain(configs.compose([text for text in overrides if not text.startswith("out=")], base))
        if i > 1 and config["load"]:
            raise ArnoError(f"load in {file}", "a later stage loads the previous stage", "leave load out")
        if config["rounds"] <= before:
            rule = f"rounds counts all stages, and the previous stage ends after round {before}"
            raise ArnoError(f"rounds = {config['rounds']} in {file}", rule, f"try rounds: {before + 100}")
        before = config["rounds"]
        plan.append(config | ({"out": f"{out}/stage{i}"} if out else {}))
    result: Any = None
    for i, config in enumerate(plan, 1):
        if result is not None:
            config["load"] = str(result.path)
        progress.say(f"stage {i} of {len(plan)}, to round {config['rounds']}")
        if config["out"] and (Path(config["out"]) / "manifest.json").exists():
            check(Path(config["out"]), RunFolder.open(Path(config["out"])).config(), targets(config))
            odd = configs.differences(configs.current(RunFolder.open(Path(config["out"])).config()), config)
            if odd:
                raise ArnoError(
                    f"out = {config['out']}", f"it holds a run that differs in {'; '.join(odd)}", "choose another out="
                )
            result = resume(config["out"], f"rounds={config['rounds']}", progress=progress, allowed=targets(config))
        else:
            result = execute(config, progress)
    return result
