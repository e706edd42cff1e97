"""What `--help` prints, and the reference page of options: both from the table of options."""

from __future__ import annotations

from phalanx.cli.options import GROUPS, OPTIONS, Option

__all__ = ["help_text", "options_page"]

_INTRODUCTION = (
    "Start a program as a group of ranked worker processes, give each the environment that "
    "torch.distributed needs, and keep the group whole. Takes torchrun's command lines."
)
_EXAMPLES = """\
  phalanx --nproc-per-node=4 train.py --lr 0.1      4 workers on this machine
  phalanx --nproc-per-node=4 --max-restarts=3 train.py
  phalanx --nproc-per-node=2 -m package.train       like python -m
"""
_FOOT = (
    "Options may be abbreviated and written with underscores. What follows the script is the "
    "script's. The default of torchrun's options can be set by a variable: PET_NPROC_PER_NODE for "
    "--nproc-per-node, and so on (not --numa-binding, --logs-specs, and what torchrun does not "
    "have). Differences from torchrun: docs/differences.md. Exit codes: "
    "docs/reference/exit-codes.md."
)
#: Where descriptions begin.
_COLUMN = 30


def help_text(width: int = 100, *, old_form: bool = False) -> str:
    """The whole help, for a terminal `width` columns wide."""
    from textwrap import fill

    width = max(width, 60)
    command = "python -m phalanx.launch" if old_form else "phalanx"
    usage = f"usage: {command} [options] script [script arguments ...]\n"
    parts = [usage, fill(_INTRODUCTION, width) + "\n", _EXAMPLES]
    for group in GROUPS:
        lines = [f"{group}:"]
        for option in OPTIONS:
            if option.group == group and (old_form or not option.old_form):
                lines += _described(option, width)
        parts.append("\n".join(lines) + "\n")
    return "\n".join([*parts, fill(_FOOT, width) + "\n"])


def _described(option: Option, width: int) -> list[str]:
    from textwrap import fill

    head = "  " + _spelled(option)
    indent = " " * _COLUMN
    text = option.help + _default(option)
    body = fill(text, width, initial_indent=indent, subsequent_indent=indent)
    if len(head) < _COLUMN - 1:
        return [head.ljust(_COLUMN) + body[_COLUMN:]]
    return [head, body]


def options_page() -> str:
    """`docs/reference/options.md`."""
    rows = [
        "# Options",
        "",
        "Generated from the table in `phalanx.cli.options` (`make docs`); do not edit.",
        "",
        "Order of precedence: command line, then variable, then default. Dashes and underscores",
        "are the same; unambiguous abbreviations are accepted; the last occurrence wins; nothing",
        "after the script is interpreted.",
    ]
    for group in GROUPS:
        rows += ["", f"## {group}", "", "| option | variable | default | meaning |"]
        rows.append("| --- | --- | --- | --- |")
        for option in (row for row in OPTIONS if row.group == group):
            variable = f"`{option.variable}`" if option.pet else ""
            default = f"`{option.default}`" if option.default else ""
            spelled = _spelled(option).replace("|", "\\|")
            mark = " *(not in torchrun)*" if option.ours else ""
            if option.old_form:
                mark = " *(`python -m phalanx.launch` only)*"
            rows.append(f"| `{spelled}` | {variable} | {default} | {option.help}{mark} |")
    return "\n".join(rows) + "\n"


def _spelled(option: Option) -> str:
    value = "|".join(option.choices) if option.choices else option.metavar
    long = f"--{option.name}" + (f" {value}" if value else "")
    return f"{option.short}, {long}" if option.short else long


def _default(option: Option) -> str:
    return f" (default: {option.default})" if option.default else ""
