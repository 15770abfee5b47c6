"""Shell completion: commands, settings, and the names of a group after its `=`."""

from __future__ import annotations

import ast
from pathlib import Path

SCRIPTS = {
    "bash": """\
_arno() {
  local IFS=$'\\n' cur="${COMP_WORDS[COMP_CWORD]}" line="${COMP_LINE:0:$COMP_POINT}"
  cur="${line##*[[:space:]]}"
  COMPREPLY=($(arno completion --words "$line" 2>/dev/null))
  [[ "$cur" == *=* ]] && COMPREPLY=("${COMPREPLY[@]#*=}")
  [[ "${COMPREPLY[*]}" == *= ]] && compopt -o nospace
}
complete -o default -F _arno arno""",
    "zsh": """\
_arno() {
  local -a found
  found=("${(@f)$(arno completion --words "${words[1,CURRENT]}" 2>/dev/null)}")
  compadd -S '' -- $found
}
compdef _arno arno""",
    "fish": "complete -c arno -f -a '(arno completion --words (commandline -cp))'",
}


def words(line: list[str]) -> list[str]:
    """What may stand where the line ends.

    >>> words(["arno res"]), words(["arno run method=fedp"])
    (['resume'], ['method=fedprox'])
    >>> words(["arno run local.ep"]), words(["arno run method=fedprox method."])
    (['local.epochs='], ['method.mu='])
    """
    from .cli import COMMANDS

    typed = " ".join(line).split(" ")[1:] or [""]
    last = typed[-1]
    if len(typed) == 1:
        return [name for name in COMMANDS if name.startswith(last)]
    if typed[0] in ("conform", "report") or (typed[0] == "resume" and len(typed) == 2):  # files: the shell knows them
        return []
    from .experiment.config import GROUPS, describe

    key, equals, _ = last.partition("=")
    if equals:
        found = [f"{key}={name}" for name in registered(key)] if key in GROUPS else []
    else:
        kinds = {key: default for key, default, _ in describe() if key in GROUPS}
        kinds |= {k: v for k, _, v in (word.partition("=") for word in typed) if k in GROUPS}
        found = [f"{key}=" for key, _, _ in describe()]
        found += [f"{g}.{name}=" for g, kind in kinds.items() for name in registered(g).get(kind, [])]
    return [word for word in found if word.startswith(last)]


def registered(group: str) -> dict[str, list[str]]:
    """The names of a group and their settings, read from the sources: importing them takes too long for a key press.

    >>> registered("partition")["shards"]
    ['shards']
    """
    root = Path(__file__).parent
    register, place = {
        "method": ("methods.register", root / "methods"),
        "problem": ("problems.register", root / "experiment" / "build.py"),
        "model": ("models.register", root / "models"),
        "engine": ("engines.register", root / "engines"),
        "data": ("source", root / "data" / "sources"),
        "partition": ("partitions.register", root / "data" / "partition.py"),
        "select": ("selections.register", root / "selection.py"),
    }[group]
    found = {}
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == register:
                    found[ast.literal_eval(call.args[0])] = [argument.arg for argument in node.args.kwonlyargs]
    return dict(sorted(found.items()))
