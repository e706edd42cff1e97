"""The command line by torchrun's rules: which words are options, which are the script's."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.cli.options import OPTIONS, Option
from phalanx.cli.parse import CommandLine, parse
from phalanx.errors import UsageError

VALUED = [option for option in OPTIONS if option.metavar]
FLAGS = [o for o in OPTIONS if not o.metavar and o.name not in ("help", "version", "use-env")]
WITH_VARIABLE = [option for option in OPTIONS if option.pet]
ABBREVIATIONS = {
    "--nn": "nnodes",
    "--stand": "standalone",
    "--rdzv-b": "rdzv-backend",
    "--rdzv_e": "rdzv-endpoint",
    "--nproc-p": "nproc-per-node",
    "--redirect": "redirects",
    "--log-": "log-dir",
    "--log_": "log-dir",
    "--no-": "no-python",
    "--mod": "module",
    "--max-r": "max-restarts",
    "--ver": "version",
}
NASTY_ARGS = [
    ["--log", "x"],
    ["--log=5"],
    ["--nproc", "3"],
    ["--max", "3"],
    ["--no", "x"],
    ["--local", "3"],
    ["--master", "h"],
    ["--rdzv", "x"],
    ["--r", "3"],
    ["-r", "3"],
    ["-m", "mod"],
    ["--"],
    ["--", "b"],
    ["x", "--", "b"],
    ["-h"],
    ["--help"],
    ["--version"],
    ["--standalone", "-h", "--nn", "3"],
    ["--nproc-per-node=9"],
    ["--no-such-option"],
    ["a$$b"],
    ["$HOME", "${local_rank}", "$local_rank"],
    [""],
    [" "],
    ["-"],
    ["-1"],
    ["@file"],
    ["--config={'a': 1}"],
    ["ünïcode", "line\nbreak"],
]


def line_of(*words: str, **environ: str) -> CommandLine:
    return parse(words, environ)


def error_of(*words: str, **environ: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse(words, environ)
    return caught.value


@pytest.mark.parametrize("option", VALUED, ids=lambda option: option.name)
@pytest.mark.parametrize("separator", ["-", "_"])
def test_an_option_takes_its_value_after_a_blank_and_after_an_equals_sign(
    option: Option, separator: str
) -> None:
    spelling = "--" + option.name.replace("-", separator)

    apart = line_of(spelling, "7", "s.py", "a")
    glued = line_of(f"{spelling}=7", "s.py", "a")

    assert apart.text(option.name) == glued.text(option.name) == "7"
    assert apart.script == glued.script == "s.py"
    assert apart.args == glued.args == ("a",)
    assert apart.settings[option.name].source == spelling


@pytest.mark.parametrize("option", FLAGS, ids=lambda option: option.name)
@pytest.mark.parametrize("separator", ["-", "_"])
def test_a_flag_takes_no_value(option: Option, separator: str) -> None:
    spelling = "--" + option.name.replace("-", separator)

    assert line_of(spelling, "s.py").flag(option.name)
    assert line_of(spelling, "s.py").script == "s.py"
    assert not line_of("s.py").flag(option.name)
    assert "takes no value" in str(error_of(f"{spelling}=1", "s.py"))


@pytest.mark.parametrize("option", VALUED, ids=lambda option: option.name)
def test_an_option_without_its_value_is_an_error_that_names_it(option: Option) -> None:
    for words in (
        [f"--{option.name}"],
        [f"--{option.name}", "--standalone"],
        [f"--{option.name}", "--"],
    ):
        error = error_of(*words)

        assert f"--{option.name} needs a value" in str(error)
        assert error.hint == f"write --{option.name}=VALUE"


@pytest.mark.parametrize(("word", "name"), ABBREVIATIONS.items())
def test_an_abbreviation_means_the_only_option_that_begins_with_it(word: str, name: str) -> None:
    assert line_of(word, "1", "s.py").given(name)


def test_nproc_is_an_abbreviation_since_both_spellings_are_one_option() -> None:
    assert line_of("--nproc", "3", "s.py").text("nproc-per-node") == "3"


@pytest.mark.parametrize("word", ["--log", "--rdzv", "--no", "--master", "--r", "--n"])
def test_an_ambiguous_abbreviation_is_refused_with_what_it_could_mean(word: str) -> None:
    error = error_of(word, "3", "s.py")

    assert f"{word} is short for several options" in str(error)
    assert error.hint.startswith("write one of --")
    assert all(
        part.startswith(word) for part in error.hint.removeprefix("write one of ").split(", ")
    )


def test_an_option_of_ours_never_makes_an_abbreviation_of_torchruns_ambiguous() -> None:
    ours = [option.name for option in OPTIONS if option.ours]
    theirs = [option.name for option in OPTIONS if not option.ours]
    for name in ours:
        for length in range(1, len(name)):
            begun = [other for other in theirs if other.startswith(name[:length])]
            if len(begun) == 1:
                assert line_of(f"--{name[:length]}", "1", "s.py").given(begun[0])


def test_short_options() -> None:
    assert line_of("-r3", "s.py").text("redirects") == "3"
    assert line_of("-r", "3", "s.py").text("redirects") == "3"
    assert line_of("-r=3", "s.py").text("redirects") == "3"
    assert line_of("-t0:1,1:2", "s.py").text("tee") == "0:1,1:2"
    assert line_of("-m", "mod").flag("module")


def test_short_flags_can_be_run_together_with_what_follows() -> None:
    line = line_of("-mr3", "mod", "-t1")

    assert line.flag("module")
    assert line.text("redirects") == "3"
    assert (line.script, line.args) == ("mod", ("-t1",))
    assert line_of("-mt", "2", "mod").text("tee") == "2"
    assert line_of("-mh").flag("help")
    assert "unknown option -x" in str(error_of("-mx", "mod"))
    assert "takes no value" in str(error_of("-m=mod"))


def test_the_last_occurrence_wins_across_spellings() -> None:
    line = line_of("--nnodes=1", "--max_restarts", "2", "--max-restarts=3", "--nn", "2", "s.py")

    assert line.text("max-restarts") == "3"
    assert line.text("nnodes") == "2"
    assert line_of("-r1", "--redirects=2", "-r", "3", "s.py").text("redirects") == "3"


def test_numbers_below_zero_are_values_and_not_options() -> None:
    assert line_of("--node-rank", "-1", "s.py").text("node-rank") == "-1"
    assert line_of("--monitor-interval", "-.5", "s.py").text("monitor-interval") == "-.5"
    assert line_of("--role", "-a b", "s.py").text("role") == "-a b"
    assert line_of("--role", "-", "s.py").text("role") == "-"


@pytest.mark.parametrize("args", NASTY_ARGS, ids=repr)
@pytest.mark.parametrize("before", [[], ["--nproc-per-node=2"], ["-m"], ["--"]], ids=repr)
def test_what_follows_the_script_is_the_scripts_to_the_letter(
    before: list[str], args: list[str]
) -> None:
    line = line_of(*before, "script", *args)

    assert line.script == "script"
    assert line.args == tuple(args)
    assert {name for name in line.settings if line.given(name)} <= {"nproc-per-node", "module"}


def test_two_dashes_before_the_script_end_the_options() -> None:
    line = line_of("--nproc-per-node=2", "--", "--odd-name.py", "--", "b")

    assert line.script == "--odd-name.py"
    assert line.args == ("--", "b")
    assert line_of("--").script is None


def test_a_dash_is_a_script_on_stdin() -> None:
    assert line_of("--role=r", "-", "-x").script == "-"


def test_an_empty_line_has_no_script() -> None:
    assert line_of().script is None
    assert line_of("--standalone").script is None


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--nprocs-per-node", "did you mean --nproc-per-node?"),
        ("--max_restart_count", "did you mean --max-restarts?"),
        ("--standalon3", "did you mean --standalone?"),
        ("--xyzzy", "options of the script go after the script"),
        ("-x", "options of the script go after the script"),
        (
            "--use-env",
            "LOCAL_RANK is always in the environment; `python -m phalanx.launch` knows it",
        ),
        ("-np", "did you mean --nproc-per-node?"),
        ("--nprocs", "did you mean --nproc-per-node?"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_one(word: str, hint: str) -> None:
    error = error_of(word, "s.py")

    assert str(error) == f"unknown option {word}"
    assert hint in error.hint
    assert error.exit_code == 64


@pytest.mark.parametrize("word", ["-h", "--help", "--hel", "--version"])
def test_help_and_version_make_mistakes_on_the_line_irrelevant(word: str) -> None:
    line = line_of(word, "--no-such-option", PET_STANDALONE="rubbish")

    assert [*line.settings] in (["help"], ["version"])


# Variables


@pytest.mark.parametrize(
    "option", [o for o in WITH_VARIABLE if o.metavar], ids=lambda option: option.name
)
def test_a_variable_is_the_default_and_the_line_beats_it(option: Option) -> None:
    variable = "PET_" + option.name.upper().replace("-", "_")

    by_variable = parse(["s.py"], {variable: "7"})
    by_line = parse([f"--{option.name}=8", "s.py"], {variable: "7"})

    assert by_variable.text(option.name) == "7"
    assert by_variable.settings[option.name].source == variable
    assert by_variable.given(option.name)
    assert by_line.text(option.name) == "8"
    assert parse(["s.py"], {}).text(option.name) == option.default
    assert not parse(["s.py"], {}).given(option.name)


@pytest.mark.parametrize(
    "option", [o for o in WITH_VARIABLE if not o.metavar], ids=lambda option: option.name
)
@pytest.mark.parametrize(
    ("text", "on"),
    [("1", True), ("2", True), ("-1", True), (" 1 ", True), ("true", True), ("Yes", True),
     ("ON", True), ("0", False), ("00", False), ("false", False), ("No", False), ("off", False)],
)  # fmt: skip
def test_a_flags_variable_is_a_whole_number_as_in_torchrun_or_a_word(
    option: Option, text: str, on: bool
) -> None:
    assert parse(["s.py"], {option.variable: text}).flag(option.name) is on


@pytest.mark.parametrize("text", ["", "maybe", "1.0", "2x"])
def test_a_flags_variable_that_is_neither_on_nor_off_is_refused(text: str) -> None:
    error = error_of("s.py", PET_STANDALONE=text)

    assert str(error) == f"PET_STANDALONE is {text!r}, which is neither on nor off"
    assert error.hint == "set PET_STANDALONE to 1 or 0, or unset it"


def test_a_flag_on_the_line_is_on_whatever_its_variable_says() -> None:
    assert line_of("--standalone", "s.py", PET_STANDALONE="0").flag("standalone")
    assert line_of("--standalone", "s.py", PET_STANDALONE="rubbish").flag("standalone")


@pytest.mark.parametrize("option", [o for o in OPTIONS if not o.pet], ids=lambda o: o.name)
def test_options_without_a_variable_do_not_look_for_one(option: Option) -> None:
    line = parse(["s.py"], {option.variable: "1"})

    assert not line.given(option.name)


# Anything at all

WORDS = st.one_of(
    st.sampled_from([f"--{o.name}" for o in OPTIONS] + ["-m", "-r", "-t", "-h", "--", "-", "s.py"]),
    st.text(max_size=8),
    st.text(alphabet="-_=mrthn ", max_size=6),
    st.builds("--{}={}".format, st.sampled_from([o.name for o in OPTIONS]), st.text(max_size=4)),
)


@given(
    words=st.lists(WORDS, max_size=6),
    environ=st.dictionaries(
        st.sampled_from([o.variable for o in WITH_VARIABLE]), st.text(max_size=5), max_size=3
    ),
)
def test_parse_raises_nothing_but_usage_errors(words: list[str], environ: dict[str, str]) -> None:
    try:
        line = parse(words, environ)
    except UsageError:
        return
    assert all(name in {o.name for o in OPTIONS} for name in line.settings)
    count = len(line.args) + (line.script is not None)
    assert list(line.args) == words[len(words) - len(line.args) :]
    assert count <= len(words)


# Against torchrun's own parser


def torch_actions() -> list[argparse.Action]:
    from torch.distributed.run import get_args_parser

    return [action for action in get_args_parser()._actions if action.option_strings]


@pytest.mark.torch
def test_every_option_of_torchruns_parser_is_ours_in_every_spelling() -> None:
    for action in torch_actions():
        takes_value = action.nargs != 0
        names = set()
        for spelling in action.option_strings:
            words = [spelling, "7"] if takes_value else [spelling]
            line = parse([*words, "s.py"], {})
            names.add(next(name for name in line.settings if line.given(name)))
        assert len(names) == 1, action.option_strings


@pytest.mark.torch
@pytest.mark.parametrize("words", [["--use-env", "s.py"], ["--use_env", "s.py"], ["s.py"]], ids=str)
def test_the_old_forms_own_parser_reads_the_same_from_a_line(words: list[str]) -> None:
    from torch.distributed.launch import parse_args

    assert parse_args(words).use_env == parse(words, {}, old_form=True).flag("use-env")


@pytest.mark.torch
def test_no_option_pretends_to_be_torchruns() -> None:
    theirs = {s[2:].replace("_", "-") for a in torch_actions() for s in a.option_strings}

    assert {option.name for option in OPTIONS if not (option.ours or option.old_form)} == {
        name for name in theirs if len(name) > 1
    }


@pytest.mark.torch
def test_defaults_choices_and_variables_are_those_of_torchruns_parser() -> None:
    from torch.distributed.argparse_util import check_env, env

    by_name = {option.name: option for option in OPTIONS}
    for action in torch_actions():
        name = max(action.option_strings, key=len)[2:].replace("_", "-")
        ours = by_name[name]
        default = action.default
        if name == "help" or action.nargs == 0:
            default = None
        elif isinstance(default, list):
            default = ",".join(default)
        elif default is not None:
            default = str(default)
        assert ours.default == default, name
        assert ours.choices == tuple(action.choices or ()), name
        assert ours.pet == isinstance(action, (env, check_env)), name
        assert ours.is_flag == (action.nargs == 0), name


@pytest.mark.torch
@pytest.mark.parametrize(
    "words",
    [
        ["--nn", "2", "--stand", "s.py", "--lr", "1"],
        ["--nproc-p=3", "--redirect=3", "-m", "mod", "x"],
        ["-mr3", "-t", "1", "mod"],
        ["--rdzv_id", "a", "--rdzv-id=b", "--", "s.py", "-x"],
        ["--rdzv-conf", "a=1,b=2", "s.py", "--standalone", "-h", "--nn", "3"],
        ["--node-rank", "-1", "s.py"],
    ],
    ids=" ".join,
)
def test_torchruns_own_parser_reads_the_same_from_a_line(words: list[str]) -> None:
    from torch.distributed.run import parse_args

    theirs = vars(parse_args(words))
    ours = parse(words, {})

    assert theirs["training_script"] == ours.script
    assert theirs["training_script_args"] == list(ours.args)
    for option in OPTIONS:
        if option.ours or option.name in ("help", "use-env", "duplicate-stdout-filters",
                                          "duplicate-stderr-filters"):  # fmt: skip
            continue
        value = theirs[option.name.replace("-", "_")]
        if option.is_flag:
            assert value is ours.flag(option.name), option.name
        else:
            assert (None if value is None else str(value)) == ours.text(option.name), option.name
