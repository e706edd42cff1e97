"""PURE: from words to settings and the script, by torchrun's rules.

`parse` finds which of the words are options, without interpreting their values (that is
`cli.spec`). The standard parser cannot be used for it: it looks at the words after the script,
too, so that `train.py --log x` is refused as an ambiguous `--log-dir`; it counts `--nproc-per-node`
and `--nproc_per_node` as two options, so that `--nproc` is ambiguous; it does not check defaults
that come from variables.

Rules kept from torchrun: both spellings and `=`; unambiguous abbreviations; the last one wins; the
first word that is not an option is the script and all that follows is the script's; command line
before `PET_*` before default; a flag that a variable switches on cannot be switched off.
"""

from __future__ import annotations

from phalanx.cli.options import OPTIONS, Option
from phalanx.errors import UsageError
from phalanx.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["CommandLine", "Setting", "parse"]

_BY_SHORT = {option.short: option for option in OPTIONS if option.short}

#: What makes all else on the line irrelevant, mistakes included.
_LEAVING = ("help", "version")
#: What other launchers call --nproc-per-node.
_ELSEWHERE = frozenset(("n", "np", "nprocs", "nproc", "num-processes", "num-procs", "workers"))

_YES = frozenset(("true", "yes", "on"))
_NO = frozenset(("false", "no", "off"))


class Setting(Record):
    """The text given for one option, and where it was given, as messages name it."""

    text: str
    #: "--nnodes" as on the command line, "PET_NNODES", or "" for a default.
    source: str


class CommandLine(Record):
    """What was asked for. `settings` has an entry for each option that has a value."""

    settings: Mapping[str, Setting]
    script: str | None
    args: tuple[str, ...]
    #: The option whose value is the last word; None if there is a script.
    last: Setting | None = None
    #: As `python -m phalanx.launch` has it.
    old_form: bool = False

    def text(self, name: str) -> str | None:
        setting = self.settings.get(name)
        return None if setting is None else setting.text

    def flag(self, name: str) -> bool:
        return name in self.settings

    def given(self, name: str) -> bool:
        """Was it given, on the line or by its variable? A default is not given."""
        setting = self.settings.get(name)
        return setting is not None and bool(setting.source)


def parse(
    words: Sequence[str], environ: Mapping[str, str], *, old_form: bool = False
) -> CommandLine:
    """Settings, script and script arguments. Raises UsageError; never looks at values.

    `old_form`: as `python -m phalanx.launch` has it, which knows `--use-env`.
    """
    known = [option for option in OPTIONS if old_form or not option.old_form]
    settings: dict[str, Setting] = {}
    last: Setting | None = None
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            position += 1
            break
        if not word.startswith("-") or word == "-":
            break
        option, spelling, value = _split(word, known)
        position += 1
        while option.is_flag and value and word[1] != "-" and word[2] != "=":
            settings[option.name] = Setting("1", spelling)  # `-mr3` is `-m -r3`
            word = "-" + value
            option, spelling, value = _split(word, known)
        if option.is_flag:
            if value is not None:
                raise UsageError(f"{spelling} takes no value, got {value!r}", f"write {spelling}")
            if option.name in _LEAVING:
                return CommandLine({option.name: Setting("1", spelling)}, None, (), None, old_form)
            value = "1"
        elif value is None:
            if position == len(words) or _looks_like_option(words[position]):
                raise UsageError(
                    f"{spelling} needs a value ({option.metavar})", f"write {spelling}=VALUE"
                )
            value = words[position]
            position += 1
            last = Setting(value, spelling) if position == len(words) else None
        settings[option.name] = Setting(value, spelling)
    script = words[position] if position < len(words) else None
    args = tuple(words[position + 1 :])
    return CommandLine(_with_defaults(settings, environ), script, args, last, old_form)


def _with_defaults(
    settings: dict[str, Setting], environ: Mapping[str, str]
) -> Mapping[str, Setting]:
    for option in OPTIONS:
        if option.name in settings:
            continue
        text = environ.get(option.variable) if option.pet else None
        if text is None:
            if option.default is not None:
                settings[option.name] = Setting(option.default, "")
        elif not option.is_flag:
            settings[option.name] = Setting(text, option.variable)
        elif _is_on(text, option.variable):
            settings[option.name] = Setting("1", option.variable)
    return settings


def _is_on(text: str, variable: str) -> bool:
    """A flag's variable: any whole number, as in torchrun, or a word. Raises UsageError."""
    word = text.strip().lower()
    if word in _YES:
        return True
    if word in _NO:
        return False
    try:
        return int(text) != 0
    except ValueError:
        raise UsageError(
            f"{variable} is {text!r}, which is neither on nor off",
            f"set {variable} to 1 or 0, or unset it",
        ) from None


def _split(word: str, known: Sequence[Option]) -> tuple[Option, str, str | None]:
    """The option a word means, its spelling for messages, and the value that is glued to it."""
    if word.startswith("--"):
        spelling, equals, value = word.partition("=")
        return _long(spelling, known), spelling, value if equals else None
    option = _BY_SHORT.get(word[:2])
    if option is None:
        raise _unknown(word, known)
    rest = word[2:]
    if not rest:
        return option, word, None
    return option, word[:2], rest.removeprefix("=")


def _long(spelling: str, known: Sequence[Option]) -> Option:
    name = spelling[2:].replace("_", "-")
    matches = [row for row in known if row.name.startswith(name)]
    for option in matches:
        if option.name == name:
            return option
    theirs = [row for row in matches if not row.ours]
    candidates = theirs or matches
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise _unknown(spelling, known)
    raise UsageError(
        f"{spelling} is short for several options",
        "write one of " + ", ".join("--" + row.name for row in candidates),
    )


def _looks_like_option(word: str) -> bool:
    """Would this word be read as an option? Not so for `-`, `-1` and words with blanks."""
    if not word.startswith("-") or word == "-" or " " in word:
        return False
    return not word[1:].replace(".", "", 1).isdigit()


def _unknown(spelling: str, known: Sequence[Option]) -> UsageError:
    from difflib import get_close_matches  # only when there is something to say

    word = spelling.lstrip("-").replace("_", "-")
    if word == "use-env":
        return UsageError(
            f"unknown option {spelling}",
            "leave it out, LOCAL_RANK is always in the environment; `python -m phalanx.launch` "
            "knows it",
        )
    names = [row.name for row in known]
    if word in _ELSEWHERE:
        close = ["nproc-per-node"]
    else:
        close = get_close_matches(word, names, n=1, cutoff=0.6)
    hint = f"did you mean --{close[0]}? " if close else ""
    return UsageError(
        f"unknown option {spelling}",
        hint + "options of the script go after the script; `phalanx --help` lists ours",
    )
