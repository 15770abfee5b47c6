"""`arno completion`: the shell completes commands, settings, and after `GROUP=` the names of the group."""

from __future__ import annotations

from . import COMMANDS
from .parser import parser_of

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


def main(arguments: list[str]) -> int:
    """Run the command."""
    if arguments[:1] == ["--words"]:
        print("\n".join(words(arguments[1:])))
        return 0
    parser = parser_of("completion", COMMANDS["completion"], settings=False)
    parser.add_argument("shell", choices=sorted(SCRIPTS))
    print(SCRIPTS[parser.parse_args(arguments).shell])
    return 0


#: Commands whose words are files or folders; the shell completes them.
FILES = ("conform", "repair", "report", "runs", "track", "ui", "watch")


def words(line: list[str]) -> list[str]:
    """The words that can complete the line.

    >>> words(["arno res"]), words(["arno run method=fedpro"])
    (['resume'], ['method=fedprox'])
    >>> words(["arno run local.ep"]), words(["arno run method=fedprox method."])
    (['local.epochs='], ['method.mu='])
    >>> words(["arno watch ru"])
    []
    """
    from ..config.names import registered

    typed = " ".join(line).split(" ")[1:] or [""]
    last = typed[-1]
    if len(typed) == 1:
        return [name for name in COMMANDS if name.startswith(last)]
    if typed[0] in FILES or (typed[0] == "resume" and len(typed) == 2):
        return []
    from ..config.settings import GROUPS, describe

    key, equals, _ = last.partition("=")
    if equals:
        found = [f"{key}={name}" for name in registered(key)] if key in GROUPS else []
    else:
        kinds = {key: default for key, default, _ in describe() if key in GROUPS}
        kinds |= {k: v for k, _, v in (word.partition("=") for word in typed) if k in GROUPS}
        found = [f"{key}=" for key, _, _ in describe()]
        found += [f"{g}.{name}=" for g, kind in kinds.items() for name in registered(g).get(kind, [])]
    return [word for word in found if word.startswith(last)]
