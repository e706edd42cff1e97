"""PURE: the options of the workers' output, from settings to a `Console`."""

from __future__ import annotations

from phalanx.cli.values import bad, choice, named, whole_number
from phalanx.errors import UsageError
from phalanx.job import Console, ConsoleMode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from phalanx.cli.parse import CommandLine, Setting
    from phalanx.job import JobSpec, StreamChoice

__all__ = ["check_ranks", "console"]

#: torchrun's variable for what stands before a line of --tee.
TEMPLATE_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: A log file smaller than this would be put aside all the time.
_SMALLEST_LOG = 4096


def console(line: CommandLine, environ: Mapping[str, str], notes: list[str]) -> Console:
    """Where the output goes. Raises UsageError."""
    redirects, tee = _streams(line, "redirects"), _streams(line, "tee")
    if line.text("log-dir") == "/dev/null":
        for name, wanted in (("redirects", redirects), ("tee", tee)):
            if wanted:
                source = named(line.settings[name], name)
                notes.append(f"{source} has no effect with --log-dir /dev/null")
    default = Console()
    made = Console(
        mode=ConsoleMode(choice(line, "console") or "auto"),
        local_ranks=_ranks(line, "local-ranks-filter"),
        ranks=_ranks(line, "ranks-filter"),
        redirects=redirects,
        tee=tee,
        template=environ.get(TEMPLATE_VARIABLE, default.template),
        stdout_filters=_texts(line, "duplicate-stdout-filters"),
        stderr_filters=_texts(line, "duplicate-stderr-filters"),
        log_max_size=_size(line, "log-max-size"),
        tty_rank=whole_number(line, "tty", at_least=0) if line.given("tty") else None,
    )
    _check_together(line, made, notes)
    return made


def check_ranks(line: CommandLine, spec: JobSpec, notes: list[str]) -> None:
    """Are there the ranks that the options name? Raises UsageError for --tty."""
    chosen, size = spec.console, spec.local_world_size
    alone = spec.max_nodes == 1
    if alone and chosen.tty_rank is not None and chosen.tty_rank >= size:
        raise bad(line.settings["tty"], "tty", _one_of(size))
    _check_streams(line, chosen, size, notes)
    for name, ranks in (
        ("local-ranks-filter", chosen.local_ranks),
        ("ranks-filter", chosen.ranks if alone else None),
    ):
        if ranks is not None and not any(rank < size for rank in ranks):
            notes.append(f"{named(line.settings[name], name)}: no worker is shown: it is not "
                         f"{_one_of(size)}")  # fmt: skip


def _check_streams(line: CommandLine, chosen: Console, size: int, notes: list[str]) -> None:
    for name, streams in (("redirects", chosen.redirects), ("tee", chosen.tee)):
        far = [rank for rank, _bits in streams if rank is not None and rank >= size]
        if far:
            source = named(line.settings[name], name)
            notes.append(f"{source}: there is no local rank {far[0]}, it is not {_one_of(size)}")


def _one_of(size: int) -> str:
    return f"a rank from 0 to {size - 1}" if size > 1 else "0, the only rank"


def _check_together(line: CommandLine, made: Console, notes: list[str]) -> None:
    if made.tty_rank is not None and made.mode is not ConsoleMode.AUTO:
        raise UsageError(
            f"--tty and --console={made.mode.value} exclude each other",
            "with --tty that rank has the terminal for itself: leave --console out",
        )
    for name, filters in (("stdout", made.stdout_filters), ("stderr", made.stderr_filters)):
        if filters and not made.tee:
            source = f"duplicate-{name}-filters"
            notes.append(f"{named(line.settings[source], source)} has no effect without --tee")


def _streams(line: CommandLine, name: str) -> StreamChoice:
    """`0..3` or `RANK:0..3,...`, as torchrun reads it."""
    setting = line.settings[name]
    wanted: list[tuple[int | None, int]] = []
    for part in setting.text.split(","):
        rank, colon, digit = part.rpartition(":")
        digit_fine = digit in ("0", "1", "2", "3")
        rank_fine = _is_rank(rank) if colon else setting.text == digit
        if not (digit_fine and rank_fine):
            raise bad(
                setting,
                name,
                "0, 1, 2 or 3 for all ranks, or RANK:N with commas between",
                f"--{name}=3 or --{name}=0:3,1:1",
            )
        if digit != "0":
            wanted.append((int(rank) if colon else None, int(digit)))
    return tuple(wanted)


def _ranks(line: CommandLine, name: str) -> tuple[int, ...] | None:
    text = line.text(name)
    if not text:
        return None
    if not all(_is_rank(rank) for rank in text.split(",")):
        wanted = ("local " if name.startswith("local") else "") + "ranks with commas between"
        raise bad(line.settings[name], name, wanted, f"--{name}=0,2")
    return tuple(int(rank) for rank in text.split(","))


def _is_rank(text: str) -> bool:
    return text.strip().isascii() and text.strip().isdigit() and len(text) < 10


def _texts(line: CommandLine, name: str) -> tuple[str, ...]:
    """Texts with commas between; two commas are one that belongs to the text, as in torchrun."""
    text = line.text(name) or ""
    parts = text.replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


def _size(line: CommandLine, name: str) -> int | None:
    if not line.given(name):
        return None
    setting: Setting = line.settings[name]
    text = setting.text.strip().upper().removesuffix("B").removesuffix("I")
    digits = text.rstrip("KMGT")
    unit = _UNITS.get(text[len(digits) :])
    if unit is None or not (digits.isascii() and digits.isdigit()) or len(digits) > 15:
        raise bad(setting, name, "a size", f"--{name}=100M")
    size = int(digits) * unit
    if size < _SMALLEST_LOG:
        raise bad(setting, name, f"at least {_SMALLEST_LOG} octets", f"--{name}=100M")
    return size
