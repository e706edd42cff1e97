"""What cannot be run is said in two lines, with the right exit code, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import PHALANX, Run, eventually, finished
from phalanx.errors import ExitCode

NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
#: Root may read and write everything; without these capabilities it is as other users are.
AS_ANYONE = (
    ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.getuid() == 0 else ()
)
#: Another user, of whom there are no other processes, who may read the interpreter's files.
_USER = str(40_000 + os.getpid() % 20_000)
ANOTHER_USER = (
    *("setpriv", "--reuid", _USER, "--regid", _USER, "--clear-groups"),
    *("--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"),
)
SLEEPER = "import time; time.sleep(600)\n"


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The temporary directory of the runs of this test."""
    folder = tmp_path / "tmp"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The current directory of the runs of this test, with a script in it that is fine."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "fine.py").write_text("print('ran')\n")
    return folder


class Refusal:
    """Runs phalanx and checks the shape of its refusal."""

    def __init__(self, work: Path, temporary: Path) -> None:
        self.work = work
        self.temporary = temporary

    def __call__(
        self,
        *words: str | Path,
        code: ExitCode,
        error: str,
        hint: str,
        prefix: Sequence[str] = (),
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        """`error` and `hint` are regular expressions for the whole of their lines."""
        env = {"TMPDIR": str(self.temporary), **(env or {})}
        launcher = (*prefix, *PHALANX)
        with Run(*words, launcher=launcher, env=env, cwd=self.work, **options) as run:
            exit_code = run.wait()
            run.nothing_left()

        assert run.stdout == ""
        lines = run.stderr.splitlines()
        assert len(lines) == 2, run.stderr
        assert re.fullmatch(f"phalanx: error: {error}", lines[0]), lines[0]
        assert re.fullmatch(f"phalanx: hint: {hint}", lines[1]), lines[1]
        assert exit_code == code
        assert [*self.temporary.iterdir()] == []


@pytest.fixture
def refused(work: Path, temporary: Path) -> Refusal:
    return Refusal(work, temporary)


# The command line


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ([], "nothing to run", r"phalanx \[options\] train\.py \[arguments of train\.py\]"),
        (["--standalone"], "nothing to run", ".*"),
        (
            ["--nproc-per-node", "ok.py"],
            "nothing to run: ok.py is the value of --nproc-per-node",
            "write --nproc-per-node=VALUE, then what to run",
        ),
        ([""], "nothing to run", ".*"),
        (["--no-such", "fine.py"], "unknown option --no-such", "options of the script go .*"),
        (["--nprocpernode=2", "fine.py"], "unknown option --nprocpernode",
         "did you mean --nproc-per-node\\? .*"),
        (["--nproc-per-node", "0", "fine.py"], "--nproc-per-node is '0', but must be at least 1",
         "`phalanx --help` describes --nproc-per-node"),
        (["--nproc-per-node", "-1", "fine.py"], "--nproc-per-node is '-1', but must be at least 1",
         "`phalanx --help` describes --nproc-per-node"),
        (["--nproc_per_node=abc", "fine.py"],
         "--nproc_per_node is 'abc', but must be a whole number, or cpu, gpu, xpu, auto", ".*"),
        (["--nproc-per-node"], "--nproc-per-node needs a value \\(N\\)",
         "write --nproc-per-node=VALUE"),
        (["--log", "x", "fine.py"], "--log is short for several options",
         "write one of --log-dir, --logs-specs"),
        (["--standalone=1", "fine.py"], "--standalone takes no value, got '1'",
         "write --standalone"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_wrong_command_line(refused: Refusal, words: list[str], error: str, hint: str) -> None:
    refused(*words, code=ExitCode.USAGE, error=error, hint=hint)


def test_a_wrong_variable(refused: Refusal) -> None:
    refused(
        "fine.py",
        env={"PET_STANDALONE": "perhaps"},
        code=ExitCode.USAGE,
        error="PET_STANDALONE is 'perhaps', which is neither on nor off",
        hint="set PET_STANDALONE to 1 or 0, or unset it",
    )


def test_several_nodes(refused: Refusal) -> None:
    refused(
        "--nnodes=2",
        "fine.py",
        code=ExitCode.UNAVAILABLE,
        error="--nnodes=2: not yet on several nodes",
        hint="this version runs jobs on one node; torchrun runs this one",
    )


# The script


def test_a_script_that_is_not_there(refused: Refusal, work: Path) -> None:
    refused(
        "nope.py",
        code=ExitCode.CANNOT_START,
        error="there is no file nope.py",
        hint=f"the current directory is {re.escape(str(work))}",
    )


@pytest.mark.parametrize("word", ["package.train", "sleep", "torchvision"])
def test_a_script_that_is_rather_a_module_or_a_program(refused: Refusal, word: str) -> None:
    refused(
        word,
        code=ExitCode.CANNOT_START,
        error=f"there is no file {word}",
        hint="use -m to run a module, --no-python to run a program",
    )


def test_python_in_front_of_the_script(refused: Refusal) -> None:
    """A habit from other launchers."""
    refused(
        "python3",
        "fine.py",
        code=ExitCode.CANNOT_START,
        error="there is no file python3",
        hint="leave it out: the workers are run with Python anyway",
    )


def test_a_program_that_is_only_in_this_directory(refused: Refusal, work: Path) -> None:
    (work / "wrap.sh").write_text("#!/bin/sh\n")
    refused(
        "--no-python",
        "wrap.sh",
        code=ExitCode.CANNOT_START,
        error="there is no program wrap.sh on PATH",
        hint="for the one in this directory write ./wrap.sh",
    )


def test_only_some_local_ranks_have_a_script(refused: Refusal, work: Path) -> None:
    (work / "p_0.py").write_text("")
    refused(
        "--nproc-per-node=2",
        "p_${local_rank}.py",
        code=ExitCode.CANNOT_START,
        error="there is no file p_1.py",
        hint="did you mean p_0.py\\?",
    )


@pytest.mark.parametrize(("typed", "meant"), [("trian.py", "train.py"), ("train", "train.py")])
def test_a_script_whose_name_is_nearly_this(
    refused: Refusal, work: Path, typed: str, meant: str
) -> None:
    (work / "train.py").write_text("")

    refused(
        typed,
        code=ExitCode.CANNOT_START,
        error=f"there is no file {typed}",
        hint=f"did you mean {re.escape(meant)}\\?",
    )


@pytest.mark.parametrize("option", [[], ["--run-path"]], ids=" ".join)
def test_a_script_that_may_not_be_read(refused: Refusal, work: Path, option: list[str]) -> None:
    (work / "secret.py").write_text("")
    (work / "secret.py").chmod(0)
    refused(
        *option,
        "secret.py",
        prefix=AS_ANYONE,
        code=ExitCode.CANNOT_START,
        error="secret.py may not be read",
        hint=r"check its permissions \(ls -l\)",
    )


def test_a_script_that_is_a_directory(refused: Refusal, work: Path) -> None:
    (work / "folder").mkdir()
    refused(
        "folder",
        code=ExitCode.CANNOT_START,
        error="folder is a directory without a __main__.py",
        hint="name the script itself, or use -m for a module",
    )


def test_a_path_that_is_too_long(refused: Refusal) -> None:
    refused(
        "x" * 300,
        code=ExitCode.CANNOT_START,
        error="x+ cannot be read: File name too long",
        hint="check the path",
    )


def test_a_script_that_comes_through_a_pipe_is_left_for_the_worker_to_open(work: Path) -> None:
    """A look that waited for a writer would never end, one that read would take what is his."""
    os.mkfifo(work / "pipe")
    with Run("pipe", cwd=work) as run:
        worker = f"{sys.executable} -u pipe"
        eventually(lambda: worker in run.processes().values(), what="the worker")
        (work / "pipe").write_text("print('ran')\n")
        assert run.wait() == 0

    assert (run.stdout, run.stderr) == ("ran\n", "")


# Modules


@pytest.mark.parametrize(
    ("module", "error", "hint"),
    [
        ("no_such_module", "there is no module no_such_module", "check the name, .*"),
        ("no.such.module", "there is no module no", "check the name, .*"),
        ("json.no_such", "there is no module json.no_such", "check the name, .*"),
        ("fine.py", "fine is a module, so there is no fine.py",
         "for a file leave -m out, for a module leave .py out"),
        ("json", "json is a package without a __main__", "name a module in it: json.MODULE"),
        (".fine", "'.fine' is no module name", "check the name, .*"),
        ("./fine.py", "'./fine.py' is no module name", "for a file leave -m out, .*"),
    ],
)  # fmt: skip
def test_modules_that_are_not_there(refused: Refusal, module: str, error: str, hint: str) -> None:
    refused("-m", module, code=ExitCode.CANNOT_START, error=error, hint=hint)


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("with-dash.py", "with-dash"),
        ("space/inner/mod.py", "space.inner.mod"),
        ("pkg/__main__.py", "pkg"),
    ],
)
def test_modules_that_are_there(work: Path, temporary: Path, path: str, module: str) -> None:
    """Those that a quick look could take for missing: dashes, nested namespace packages."""
    (work / path).parent.mkdir(parents=True, exist_ok=True)
    (work / path).write_text("print('ran')\n")
    with Run("-m", module, cwd=work, env={"TMPDIR": str(temporary)}) as run:
        assert run.wait() == 0

    assert (run.stdout, run.stderr) == ("ran\n", "")
    assert [*temporary.iterdir()] == []


def test_a_package_that_extends_its_path_is_left_to_python(work: Path) -> None:
    (work / "pkg").mkdir()
    (work / "elsewhere").mkdir()
    (work / "pkg" / "__init__.py").write_text("__path__.append('elsewhere')\n")
    (work / "elsewhere" / "mod.py").write_text("print('ran')\n")
    with Run("-m", "pkg.mod", cwd=work) as run:
        assert run.wait() == 0

    assert run.stdout == "ran\n"


def test_looking_for_a_module_imports_nothing_of_it(work: Path) -> None:
    (work / "pkg").mkdir()
    (work / "pkg" / "__init__.py").write_text("import os; print('imported in', os.getpid())\n")
    (work / "pkg" / "mod.py").write_text("")
    with Run("-m", "pkg.mod", cwd=work) as run:
        assert run.wait() == 0

    assert run.stdout.count("imported in") == 1
    assert str(run.pid) not in run.stdout


# Programs


def test_a_program_that_is_not_on_path(refused: Refusal) -> None:
    refused(
        "--no-python",
        "no-such-program",
        code=ExitCode.CANNOT_START,
        error="there is no program no-such-program on PATH",
        hint="check the name, or give its path",
    )


def test_a_program_that_is_not_there(refused: Refusal) -> None:
    refused(
        "--no-python",
        "./no-such-program",
        code=ExitCode.CANNOT_START,
        error="there is no program ./no-such-program",
        hint="check the name, or give its path",
    )


def test_a_program_that_is_not_executable(refused: Refusal) -> None:
    refused(
        "--no-python",
        "./fine.py",
        code=ExitCode.CANNOT_START,
        error="./fine.py is not executable",
        hint="chmod \\+x ./fine.py, or leave --no-python out",
    )


def test_a_program_that_is_a_directory(refused: Refusal, work: Path) -> None:
    (work / "folder").mkdir()
    refused(
        "--no-python",
        "./folder",
        code=ExitCode.CANNOT_START,
        error="./folder is a directory",
        hint="name a program in it",
    )


@pytest.mark.parametrize("first_line", ["#!/no/such/program", "#! /no/such/program -x"])
def test_a_program_whose_first_line_is_broken(
    refused: Refusal, work: Path, first_line: str
) -> None:
    (work / "broken").write_text(f"{first_line}\n")
    (work / "broken").chmod(0o755)
    refused(
        "--no-python",
        "--nproc-per-node=4",
        "./broken",
        code=ExitCode.CANNOT_START,
        error="./broken asks for /no/such/program, which is not there",
        hint=r"correct its first line \(#!\)",
    )


def test_a_program_that_the_kernel_does_not_take(refused: Refusal, work: Path) -> None:
    """Only the attempt tells, so it is the first worker that could not be started."""
    (work / "odd").write_bytes(b"\x7fELF but no more")
    (work / "odd").chmod(0o755)
    refused(
        "--no-python",
        "--nproc-per-node=4",
        "./odd",
        code=ExitCode.CANNOT_START,
        error=r"rank \d could not be started: Exec format error: \./odd",
        hint="it is no program of this machine, or a script without a #! line",
    )


@pytest.mark.parametrize("option", [[], ["-m"], ["--run-path"]], ids=" ".join)
def test_an_interpreter_that_is_not_there(refused: Refusal, option: list[str]) -> None:
    refused(
        *option,
        "fine.py" if option != ["-m"] else "fine",
        env={"PYTHON_EXEC": "/no/such/python"},
        code=ExitCode.CANNOT_START,
        error="PYTHON_EXEC is /no/such/python, which is not there",
        hint="set PYTHON_EXEC to the workers' interpreter, or unset it",
    )


def test_an_interpreter_that_is_not_executable(refused: Refusal, work: Path) -> None:
    refused(
        "fine.py",
        env={"PYTHON_EXEC": str(work / "fine.py")},
        code=ExitCode.CANNOT_START,
        error=f"PYTHON_EXEC is {work}/fine.py, which is not executable",
        hint="set PYTHON_EXEC .*",
    )


def test_python_exec_is_of_no_interest_to_programs(work: Path) -> None:
    with Run("--no-python", "true", cwd=work, env={"PYTHON_EXEC": "/no/such/python"}) as run:
        assert run.wait() == 0


# The machine


def test_a_log_directory_that_is_a_file(refused: Refusal) -> None:
    refused(
        "--log-dir=fine.py",
        "fine.py",
        code=ExitCode.CANNOT_CREATE,
        error="the log directory .*/fine.py cannot be created or written: File exists",
        hint="choose another one with --log-dir",
    )


def test_a_log_directory_below_a_file(refused: Refusal) -> None:
    refused(
        "--log-dir=fine.py/logs",
        "fine.py",
        code=ExitCode.CANNOT_CREATE,
        error="the log directory .*/fine.py/logs cannot be created or written: Not a directory",
        hint="choose another one with --log-dir",
    )


@pytest.mark.parametrize("inside", ["", "new"])
def test_a_log_directory_that_may_not_be_written(refused: Refusal, work: Path, inside: str) -> None:
    (work / "locked").mkdir(mode=0o500)
    refused(
        f"--log-dir=locked/{inside}",
        "fine.py",
        prefix=AS_ANYONE,
        code=ExitCode.CANNOT_CREATE,
        error="the log directory .*/locked.* cannot be created or written: Permission denied",
        hint="choose another one with --log-dir",
    )


def test_a_temporary_directory_that_is_not_there_is_passed_over(work: Path) -> None:
    """As Python's tempfile does: a stale TMPDIR is common on clusters."""
    run = finished("fine.py", cwd=work, env={"TMPDIR": "/no/such/folder"})

    assert (run.process.returncode, run.stderr) == (0, "")


def test_a_run_id_that_no_folder_can_have(work: Path, temporary: Path) -> None:
    """Slashes, leading dots and 300 letters of two octets each make a folder all the same."""
    run_id = "../é/" + "é" * 300
    words = ["--rdzv-backend=c10d", f"--rdzv-id={run_id}", "--log-dir=logs", "fine.py"]
    with Run(*words, cwd=work, env={"TMPDIR": str(temporary)}) as run:
        assert run.wait() == 0

    names = [path.name for path in (work / "logs").iterdir() if path.name != "latest"]
    assert len(names) == 1
    assert (work / "logs" / "latest").readlink() == Path(names[0])
    assert re.fullmatch(r"_é_é+_[0-9a-f]{8}", names[0])


@pytest.mark.parametrize("option", ["--master-port={}", "--rdzv-endpoint=127.0.0.1:{}"])
def test_a_named_port_that_is_in_use(refused: Refusal, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        refused(
            option.format(port),
            "fine.py",
            code=ExitCode.UNAVAILABLE,
            error=f"port {port} cannot be used: Address already in use",
            hint="name another one; on one node it can be left out, and a free one is chosen",
        )


def test_fewer_devices_than_workers(refused: Refusal) -> None:
    refused(
        "--virtual-local-rank",
        "--nproc-per-node=3",
        "fine.py",
        env={"CUDA_VISIBLE_DEVICES": "4,5"},
        code=ExitCode.UNAVAILABLE,
        error="--virtual-local-rank: 3 workers, but CUDA_VISIBLE_DEVICES names 2 devices "
        r"\(4,5\)",
        hint="give it one device per worker, or unset it",
    )


@NEEDS_ROOT
@pytest.mark.parametrize("limit", [2, 3, 4, 5])
def test_a_process_limit(refused: Refusal, work: Path, limit: int) -> None:
    """Agent, fork server, then workers: with a limit of 4 the third worker is refused.

    Those after it are not tried. Their reports are microseconds apart, so any may be the first.
    """
    (work / "sleeper.py").write_text(SLEEPER)
    refused(
        "--nproc-per-node=4",
        "sleeper.py",
        prefix=(*ANOTHER_USER, "prlimit", f"--nproc={limit}:{limit}"),
        code=ExitCode.SYSTEM,
        error=rf"rank [{limit - 2}-3] could not be started: "
        "Resource temporarily unavailable: sleeper.py",
        hint="a process limit is reached: see `ulimit -u`, or pids.max of the container",
    )


@NEEDS_ROOT
def test_a_process_limit_that_leaves_no_fork_server(refused: Refusal) -> None:
    refused(
        "fine.py",
        prefix=(*ANOTHER_USER, "prlimit", "--nproc=1:1"),
        code=ExitCode.SYSTEM,
        error="the fork server cannot be started: Resource temporarily unavailable",
        hint="a process limit is reached: .*",
    )


@NEEDS_ROOT
def test_a_proc_of_another_pid_namespace(refused: Refusal) -> None:
    """Its numbers are not ours: children would be read, and killed, by the wrong ones."""
    refused(
        "fine.py",
        prefix=("unshare", "--pid", "--fork"),
        code=ExitCode.UNAVAILABLE,
        error="/proc is missing here, or belongs to another pid namespace",
        hint="mount it: .*",
    )


@pytest.mark.parametrize("limit", range(6, 12))
def test_a_limit_of_open_files(refused: Refusal, work: Path, limit: int) -> None:
    """Whichever descriptor is the one too many, the limit is what is named."""
    (work / "sleeper.py").write_text(SLEEPER)
    refused(
        "--nproc-per-node=3",
        "sleeper.py",
        prefix=("prlimit", f"--nofile={limit}:{limit}"),
        code=ExitCode.SYSTEM,
        error="(the fork server|the workers' store|rank .*) (cannot|could not) .*: "
        "Too many open files.*",
        hint="the limit of open files is reached: see `ulimit -n`",
    )


# Closed streams


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_are_no_trouble(work: Path, closed: str) -> None:
    """Nothing that is printed goes into a pipe of ours that got the number of a closed stream."""
    (work / "fails_once.py").write_text(
        "import os, sys\n"
        "print('on stdout'); print('on stderr', file=sys.stderr)\n"
        "sys.exit(3 * (os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'))\n"
    )
    launcher = ("sh", "-c", f'exec "$@" {closed}', "sh", *PHALANX)
    with Run("--max-restarts=1", "fails_once.py", launcher=launcher, cwd=work) as run:
        assert run.wait() == 0
        run.nothing_left()

    if "1>" not in closed:
        assert run.stdout == "on stdout\n" * 2
    if "2>" not in closed:
        assert run.stderr.count("on stderr\n") == 2
        assert "exited with code 3; restart 1 of 1" in run.stderr


# A directory of ours that has something in it stays


def test_an_error_file_is_kept_after_a_failure(work: Path, temporary: Path) -> None:
    (work / "leaves.py").write_text(
        "import os, sys\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('x')\nsys.exit(5)\n"
    )
    with Run("--nproc-per-node=1", "leaves.py", cwd=work, env={"TMPDIR": str(temporary)}) as run:
        assert run.wait() == 5

    kept = [path for path in temporary.rglob("*") if path.is_file()]
    assert [path.name for path in kept] == ["error.json"]
