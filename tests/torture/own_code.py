"""Methods and networks of the user that misbehave, in every moment, on every engine of this machine.

Each run ends with one line that names the user's own code, or does its rounds. A run that was refused is continued with
the mistake removed, where its file may change; it must then compute the bits of a run without the mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from cases import Bad, Case, Verdict, one_line, same
from commands import HUNG, Said, forked
from kills import SMALL, Recipe, Whole

#: A part with one bad moment; `bad()` is False when the file `good` is there.
PART = """
import os, sys, time
from dataclasses import dataclass
from pathlib import Path
import numpy as np, torch
from arno.core.method_part import Part

def bad():
    return not Path("good").exists()

@dataclass
class Mine(Part):
    "Misbehaves in one moment."
    def {moment}(self, *arguments):
        plain = super().{moment}(*arguments)
        if bad():
            {how}
        return plain

def factory():
    return [Mine()]
"""
#: A network whose forward pass misbehaves.
NETWORK = """
import os, sys, time
from pathlib import Path
import numpy as np, torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.linear = nn.Linear(64, outputs)

    def forward(self, x):
        plain = torch.sin(self.linear(x.flatten(1)))
        if self.training and not Path("good").exists() and torch.is_grad_enabled() and Path("run").exists():
            {how}
        return plain

def factory(shape, outputs):
    return Net(shape, outputs)
"""
MOMENTS = (
    "start", "cohort", "select", "begin", "send", "receive", "finish", "score", "record", "stop", "best_model",
    "evaluated", "private", "answered", "final", "state", "train",
)  # fmt: skip
#: What the user's code does.
HOW = {
    "raises": "raise ValueError('mine')",
    "raises what cannot be printed": "raise type('Odd', (Exception,), {'__str__': lambda s: 1 / 0})()",
    "raises many lines": "raise RuntimeError('one\\ntwo\\n' * 200)",
    "interrupts": "raise KeyboardInterrupt",
    "exits": "sys.exit(0)",
    "exits with text": "sys.exit('bye')",
    "ends the generator": "raise StopIteration",
    "recurses": "return self.forward(arguments) if False else (lambda f: f(f))(lambda f: f(f))",
    "prints": "print('x' * 100000); os.write(2, b'')",
    "closes the output": "sys.stdout.close()",
    "changes the folder": "os.chdir('/')",
    "returns nothing": "return None",
    "returns a text": "return 'text'",
    "returns a number": "return 3",
    "returns an object": "return object()",
    "returns NaN": "return torch.full((3,), float('nan'))",
    "returns an array": "return np.zeros(4)",
    "returns numpy's numbers": "return {'x': np.float64('nan'), 3: torch.zeros(2)}",
    "returns a tensor of objects": "return {'x': [1, {2}]}",
    "ends the process": "os._exit(3)",
    "hangs": "time.sleep(10**6)",
}
#: In the server's process these end or stop the run itself; nothing can say so.
FATAL = ("ends the process", "hangs")
#: Endings that the user's code chose: a Ctrl-C, and a closed output.
CHOSEN = {"interrupts": 130}


def cases(whole: Whole, seed: int, share: float = 1.0) -> Iterator[Case]:
    """Every moment with every mistake; share: the part of them that is made."""
    rng = Random(f"own code {seed}")
    every = [("method", moment, how) for moment in MOMENTS for how in HOW if how not in FATAL]
    for kind, moment, how in rng.sample(every, max(1, round(share * len(every)))):
        yield own_case(whole, kind, moment, how, "serial")
    for engine in ("serial", "processes"):
        for how in [how for how in HOW if engine == "processes" or how not in FATAL]:
            if rng.random() < share:
                yield own_case(whole, "model", "forward", how, engine)


def recipe_of(kind: str, moment: str, how: str, engine: str) -> Recipe:
    source = (PART if kind == "method" else NETWORK).format(moment=moment, how=HOW[how])
    workers = ("engine.workers=2", "engine.timeout=1") if engine == "processes" else ()
    first = ("run", *(word for word in SMALL if kind == "method" or not word.startswith("model.")))
    first = (*first, f"{kind}=custom", f"{kind}.target=mine.py:factory", f"engine={engine}", *workers)
    words = (*first, "out=run", "--quiet")
    return Recipe(f"own {kind}", words, ("resume", "run", "--quiet"), prepare=lambda f: _prepare(f, source))


def _prepare(folder: Path, source: str) -> None:
    (folder / "mine.py").write_text(source)


def own_case(whole: Whole, kind: str, moment: str, how: str, engine: str) -> Case:
    """Run the user's code with its mistake; then continue without it."""
    recipe = recipe_of(kind, moment, how, engine)

    def act(folder: Path, rng: Random) -> Verdict:
        good = Recipe(recipe.name, recipe.first, recipe.again, prepare=lambda f: _good(f, recipe))
        known = whole.of(good)
        recipe.prepare(folder)
        said = judged(forked(recipe.first, folder, patience=60), how)
        if said.status == 0:
            if not (folder / "run" / "final.safetensors").exists():
                raise Bad("silent", "status 0, and the run is not done")
            return Verdict("identical", "the run was done")
        (folder / "good").touch()
        if (folder / "run" / "config.yaml").exists():
            again = judged(forked(recipe.again, folder, patience=60), how)
            if again.status != 0:
                raise Bad("silent", f"not continued: {one_line(again.err)}")
            same(folder / "run", known["computed"]["run"], "continued")
        return Verdict("refused", one_line(said.err))

    return Case(f"own code, {engine}", f"own code, {engine}/{kind}/{moment}/{how}", act)


def _good(folder: Path, recipe: Recipe) -> None:
    recipe.prepare(folder)
    (folder / "good").touch()


def judged(said: Said, how: str) -> Said:
    """Refuse an ending that is neither a result nor one line."""
    text = " | ".join((said.err or said.out).strip().splitlines()[-4:])[-800:]
    if said.status == HUNG:
        raise Bad("hung", text)
    lines = said.err.splitlines()
    fine = said.status in (0, CHOSEN.get(how, 0)) or (
        said.status == 2 and len(lines) == 1 and lines[0].startswith("error: ") and len(lines[0]) < 3000
    )
    if not fine or "Traceback (most recent call last)" in said.out + said.err:
        raise Bad("traceback", f"status {said.status}: {text}")
    return said
