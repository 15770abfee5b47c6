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

    >>> words(["arno re"]), words(["arno run method=fedp"])
    (['resume'], ['method=fedprox'])
    >>> words(["arno run local.ep"])
    ['local.epochs=']
    """
    from .cli import COMMANDS

    typed = " ".join(line).split(" ")[1:] or [""]
    last = typed[-1]
    if len(typed) == 1:
        return [name for name in COMMANDS if name.startswith(last)]
    if typed[0] == "conform":
        return []
    from .experiment.config import GROUPS, describe

    key, equals, _ = last.partition("=")
    if equals:
        found = [f"{key}={name}" for name in registered(key)] if key in GROUPS else []
    else:
        found = [f"{key}=" for key, _, _ in describe()]
    return [word for word in found if word.startswith(last)]


def registered(group: str) -> list[str]:
    """The names of a group, read from the sources: importing them takes too long for a key press."""
    root = Path(__file__).parent
    place = {
        "method": root / "methods",
        "model": root / "models",
        "engine": root / "engines",
        "data": root / "data",
        "partition": root / "data" / "partition.py",
        "select": root / "selection.py",
    }[group]
    names = set()
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        if group == "data" and path.name == "partition.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            for call in getattr(node, "decorator_list", []):
                if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant):
                    names.add(str(call.args[0].value))
    return sorted(names)
