"""What workers print, where it arrives, in which form: not on a terminal, and in files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from harness import PHALANX, PROGRAMS, Run, eventually, finished, lines_of

SHOUT = PROGRAMS / "shout.py"


def sh(script: str, *options: str, workers: int = 2) -> tuple[str, ...]:
    """A command line for `script`, in which $RANK is the rank."""
    return (*options, f"--nproc-per-node={workers}", "--no-python", "sh", "-c", script)


def by_rank(lines: list[str], workers: int) -> list[list[str]]:
    """The lines of each rank, which begin with `RANK:`."""
    return [[line for line in lines if line.startswith(f"{rank}:")] for rank in range(workers)]


# Not on a terminal


def test_lines_of_several_workers_come_as_written_and_whole() -> None:
    script = 'for i in 1 2 3; do printf "$RANK:%s é\\t\\033[1m!\\r" $i; printf "\\n"; done'
    run = finished(*sh(script, workers=4))

    lines = run.out.split(b"\n")
    assert lines.pop() == b""
    for rank in range(4):
        own = [line for line in lines if line.startswith(b"%d:" % rank)]
        wanted = [f"{rank}:{i} é\t\033[1m!\r".encode() for i in (1, 2, 3)]
        assert own == wanted
    assert run.stderr == ""


def test_lines_are_whole_though_they_are_written_in_pieces() -> None:
    script = 'for i in 1 2 3 4 5; do printf "$RANK:"; sleep 0.02; printf "a"; printf "b\\n"; done'
    run = finished(*sh(script, workers=4))

    assert sorted(run.stdout.splitlines()) == sorted(
        f"{rank}:ab" for rank in range(4) for _ in "5" * 5
    )


def test_lines_of_json_can_be_parsed() -> None:
    script = (
        "import json, os\n"
        "for i in range(200): print(json.dumps({'rank': os.environ['RANK'], 'i': i}))"
    )
    run = finished("--nproc-per-node=4", "--no-python", "python3", "-c", script)

    found = [json.loads(line) for line in run.stdout.splitlines()]
    for rank in range(4):
        assert [line["i"] for line in found if line["rank"] == str(rank)] == list(range(200))


def test_one_worker_writes_into_the_very_stream_of_phalanx(tmp_path: Path) -> None:
    """So its bytes are unchanged, and it may look at what the stream is."""
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        command = [*PHALANX, *sh("readlink /proc/$$/fd/1; printf 'no end'", workers=1)]
        subprocess.run(command, stdout=out, stderr=err, check=True)

    assert (tmp_path / "out").read_text() == f"{tmp_path}/out\nno end"


def test_octets_of_one_worker_are_passed_on_as_they_come(tmp_path: Path) -> None:
    """Its stderr is read on its way, and with that a stdout that is the same file; not in lines."""
    wait = f"while ! test -e {tmp_path}/go; do sleep 0.02; done"
    words = sh(f'printf "loading... "; {wait}; echo done >&2', workers=1)
    read_end, write_end = os.pipe()
    with Run(*words, launcher=into(write_end, both=True), pass_fds=[write_end]) as run:
        os.close(write_end)
        assert os.read(read_end, 100) == b"loading... "
        (tmp_path / "go").touch()
        assert run.wait() == 0
    assert os.read(read_end, 100) == b"done\n"
    os.close(read_end)


def test_the_failure_of_one_worker_is_explained_and_one_that_cannot_heal_not_retried(
    tmp_path: Path,
) -> None:
    (tmp_path / "s.py").write_text("import no_such_module_at_all")
    with (tmp_path / "out").open("wb") as out:
        command = [*PHALANX, "--max-restarts=3", str(tmp_path / "s.py")]
        assert subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode == 1

    text = (tmp_path / "out").read_text()
    wanted = "rank 0 failed: ModuleNotFoundError: No module named 'no_such_module_at_all'"
    assert f"phalanx: error: {wanted}" in text
    assert "restart 1 of 3" not in text


def test_streams_that_are_one_file_keep_their_order(tmp_path: Path) -> None:
    script = "for i in 1 2 3 4 5 6; do echo $RANK:$i; i=$((i+1)); echo $RANK:$i.err >&2; done"
    with (tmp_path / "out").open("wb") as file:
        command = [*PHALANX, *sh(script, workers=3)]
        subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=True)

    lines = (tmp_path / "out").read_text().splitlines()
    wanted = [text for i in range(1, 7) for text in (f"{i}", f"{i + 1}.err")]
    assert by_rank(lines, 3) == [[f"{rank}:{text}" for text in wanted] for rank in range(3)]


def test_streams_that_are_two_files_stay_apart() -> None:
    run = finished(*sh("echo $RANK:out; echo $RANK:err >&2"))

    assert sorted(run.stdout.splitlines()) == ["0:out", "1:out"]
    assert sorted(run.stderr.splitlines()) == ["0:err", "1:err"]


def test_a_last_line_without_an_end_is_shown() -> None:
    run = finished(*sh('test $RANK = 0 && printf "first\\nlast" || true'))

    assert run.stdout == "first\nlast"


def test_the_report_begins_a_line_of_its_own(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        command = [*PHALANX, *sh('test $RANK = 1 || exec sleep 1000; printf "no end"; exit 3')]
        assert subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode == 3

    lines = (tmp_path / "out").read_text().splitlines()
    assert lines[:2] == ["no end", "phalanx: error: rank 1 exited with code 3"]


@pytest.mark.parametrize("how", ["kill -KILL $$", "kill -SEGV $$", "exit 9"])
def test_nothing_is_lost_when_a_worker_dies(how: str) -> None:
    """What it has written last is in its pipe when it is dead."""
    script = f'test $RANK = 1 || exec sleep 1000; seq -f "1:%g" 2000; printf "1:last"; {how}'
    run = finished(*sh(script))

    wanted = [f"1:{number}" for number in range(1, 2001)]
    assert run.stdout.splitlines()[:2001] == [*wanted, "1:last"]


def test_output_is_complete_though_a_helper_holds_the_pipe(tmp_path: Path) -> None:
    """It does not wait for the helper's end, nor is what the helper prints lost."""
    script = (
        "test $RANK = 0 || exit 0\n"
        f"(while ! test -e {tmp_path}/go; do sleep 0.02; done; echo 0:helper) &\n"
        "printf 0:worker"
    )
    other = f"test $RANK = 0 || {{ while ! test -e {tmp_path}/go; do sleep 0.02; done; exit 0; }}\n"
    with Run(*sh(other + script)) as run:
        run.says("0:worker")
        assert "helper" not in run.stdout
        (tmp_path / "go").touch()
        assert run.wait() == 0

    assert "0:worker" in run.stdout


# Forms


def test_prefixes() -> None:
    run = finished(*sh("echo out; echo err >&2", "--console=prefix", workers=12))

    assert sorted(run.stdout.splitlines()) == sorted(f"[{rank}] out" for rank in range(12))
    assert sorted(run.stderr.splitlines()) == sorted(f"[{rank}] err" for rank in range(12))


def test_one_worker_has_a_prefix_too_if_it_is_asked_for() -> None:
    assert finished(*sh("echo a; echo b", "--console=prefix", workers=1)).stdout == "[0] a\n[0] b\n"


def test_raw_gives_workers_the_streams_of_phalanx(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as file:
        command = [*PHALANX, *sh("readlink /proc/$$/fd/1 /proc/$$/fd/2", "--console=raw")]
        subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=True)

    assert out.read_text() == f"{out}\n" * 4


def test_folded_lines(tmp_path: Path) -> None:
    """Equal lines of several ranks are one; the order within a rank holds."""
    script = "echo begin; test $RANK = 2 && echo two; echo end"
    run = finished(*sh(script, "--console=fold", workers=4))

    parts = [re.fullmatch(r"\[([\d,-]+)\] (\w+)", line) for line in run.stdout.splitlines()]
    said: dict[int, list[str]] = {rank: [] for rank in range(4)}
    for part in parts:
        assert part is not None, run.stdout
        for piece in part[1].split(","):
            low, _, high = piece.partition("-")
            for rank in range(int(low), int(high or low) + 1):
                said[rank].append(part[2])
    assert said == {
        rank: ["begin", "two", "end"] if rank == 2 else ["begin", "end"] for rank in range(4)
    }


@pytest.mark.parametrize("option", ["--local-ranks-filter=1,3", "--ranks-filter=1,3"])
def test_only_some_ranks_are_shown(option: str) -> None:
    run = finished(*sh("echo $RANK out; echo $RANK err >&2", option, workers=4))

    assert sorted(run.stdout.splitlines()) == ["1 out", "3 out"]
    assert sorted(run.stderr.splitlines()) == ["1 err", "3 err"]


def test_a_rank_that_is_not_shown_is_in_the_report_all_the_same(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text(
        "import os, time\nif os.environ['RANK'] == '1': raise ValueError('hidden')\ntime.sleep(100)"
    )
    run = finished("--nproc-per-node=2", "--ranks-filter=0", script)

    assert run.stderr.startswith("phalanx: error: rank 1 failed: ValueError: hidden\n")
    assert "Traceback" in run.stderr


def test_a_filter_that_leaves_nobody_is_noticed() -> None:
    run = finished(*sh("echo $RANK", "--local-ranks-filter=7"))

    assert run.stdout == ""
    assert run.stderr == (
        "phalanx: --local-ranks-filter: no worker is shown: it is not a rank from 0 to 1\n"
    )


# Files


def test_redirected_streams_are_in_files_only(tmp_path: Path) -> None:
    script = "echo $RANK out; echo $RANK err >&2"
    run = finished(*sh(script, f"--log-dir={tmp_path}", "--redirects=0:3,1:1"))

    folder = tmp_path / "latest" / "attempt_0"
    assert run.stdout == ""
    assert run.stderr == "1 err\n"
    assert (folder / "0" / "stdout.log").read_text() == "0 out\n"
    assert (folder / "0" / "stderr.log").read_text() == "0 err\n"
    assert (folder / "1" / "stdout.log").read_text() == "1 out\n"
    assert not (folder / "1" / "stderr.log").exists()


def test_teed_streams_are_in_files_and_with_torchruns_prefix_on_the_console(tmp_path: Path) -> None:
    script = "echo out; echo err >&2; printf last"
    run = finished(*sh(script, f"--log-dir={tmp_path}", "--tee=3", "--role=trainer"))

    folder = tmp_path / "latest" / "attempt_0"
    lines = sorted(run.stdout.splitlines())
    assert lines == sorted(f"[trainer{rank}]:{text}" for rank in (0, 1) for text in ("last", "out"))
    assert sorted(run.stderr.splitlines()) == ["[trainer0]:err", "[trainer1]:err"]
    assert (folder / "0" / "stdout.log").read_text() == "out\nlast"


def test_teed_lines_are_whole(tmp_path: Path) -> None:
    """torchrun prints a piece as soon as it is there, and a prefix in the middle of a line."""
    script = 'for i in 1 2 3; do printf "a"; sleep 0.15; echo b; done'
    run = finished(*sh(script, f"--log-dir={tmp_path}", "--tee=1"))

    assert sorted(run.stdout.splitlines()) == ["[default0]:ab"] * 3 + ["[default1]:ab"] * 3


def test_torchruns_template_of_teed_lines(tmp_path: Path) -> None:
    env = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name} ${rank} ${local_rank} ${what}> "}
    run = finished(*sh("echo x", f"--log-dir={tmp_path}", "-t1", workers=1), env=env)

    assert run.stdout == "<default 0 0 ${what}> x\n"


def test_teed_lines_with_some_texts_go_to_a_file_of_all_ranks(tmp_path: Path) -> None:
    script = "echo loss=1; echo noise; echo acc=2; echo loss=3 >&2"
    filters = ("--duplicate-stdout-filters=loss,acc", "--duplicate-stderr-filters=nothing")
    finished(*sh(script, f"--log-dir={tmp_path}", "--tee=3", *filters))

    folder = tmp_path / "latest" / "attempt_0"
    lines = (folder / "filtered_stdout.log").read_text().splitlines()
    assert sorted(lines) == sorted(
        f"[default{rank}]:{text}" for rank in (0, 1) for text in ("loss=1", "acc=2")
    )
    assert (folder / "filtered_stderr.log").read_text() == ""


def test_filtered_ranks_are_in_files_all_the_same(tmp_path: Path) -> None:
    words = sh("echo $RANK", f"--log-dir={tmp_path}", "--tee=1", "--local-ranks-filter=0")
    run = finished(*words)

    folder = tmp_path / "latest" / "attempt_0"
    assert run.stdout == "[default0]:0\n"
    assert [(folder / str(rank) / "stdout.log").read_text() for rank in (0, 1)] == ["0\n", "1\n"]


def test_without_files_streams_go_to_the_console(tmp_path: Path) -> None:
    """As under torchrun; but this is said, and who is not to be shown is not."""
    words = sh("echo $RANK", "--log-dir=/dev/null", "--redirects=3", "--local-ranks-filter=1")
    run = finished(*words)

    assert run.stdout == "1\n"
    assert run.stderr == "phalanx: --redirects has no effect with --log-dir /dev/null\n"


def test_each_round_has_files_of_its_own(tmp_path: Path) -> None:
    script = "echo round $PHALANX_ROUND; exit $((PHALANX_ROUND < 2))"
    options = ("--max-restarts=2", "--max-restart-delay=0", f"--log-dir={tmp_path}", "-r1")
    finished(*sh(script, *options, workers=1))

    for number in (0, 1, 2):
        file = tmp_path / "latest" / f"attempt_{number}" / "0" / "stdout.log"
        assert file.read_text() == f"round {number}\n"


def test_the_newest_job_has_a_link(tmp_path: Path) -> None:
    for number in (1, 2):
        finished(*sh(f"echo {number}", f"--log-dir={tmp_path}", "-r1", workers=1))

        file = tmp_path / "latest" / "attempt_0" / "0" / "stdout.log"
        assert file.read_text() == f"{number}\n"
    assert len([path for path in tmp_path.iterdir() if not path.is_symlink()]) == 2


def test_a_file_that_is_large_is_put_aside(tmp_path: Path) -> None:
    options = (f"--log-dir={tmp_path}", "--redirects=1", "--log-max-size=20K")
    finished(*options, SHOUT, "1000")

    folder = tmp_path / "latest" / "attempt_0" / "0"
    names = ["stdout.log", "stdout.log.1", "stdout.log.2", "stdout.log.3"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert all((folder / name).stat().st_size <= 20 * 1024 for name in names)
    lines = [line for name in reversed(names) for line in lines_of(folder / name)]
    numbers = [int(line.split(":")[1].rstrip(".")) for line in lines]
    assert numbers == list(range(1000 - len(numbers), 1000))  # the newest, none torn, in order


def test_a_log_directory_that_is_full_costs_a_line_and_not_the_job(tmp_path: Path) -> None:
    """A file system of its own, with hardly any room."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o size=64k none {disk} && exec "$@"'
    launcher = ("unshare", "--mount", "sh", "-c", script, "sh", *PHALANX)
    run = finished(
        *("--nproc-per-node=2", f"--log-dir={disk}/logs", "--tee=1", SHOUT, "3000"),
        launcher=launcher,
    )

    assert run.process.returncode == 0
    assert len(run.stdout.splitlines()) == 6000
    (line,) = run.stderr.splitlines()
    assert re.fullmatch(
        r"phalanx: the log file .*stdout.log cannot be written: No space left on device; "
        "the job goes on", line
    )  # fmt: skip


# Readers that are slow, or gone


def test_a_reader_that_stands_still_holds_up_no_more_than_the_workers() -> None:
    """Nor is anything lost: it is printed when the reader goes on."""
    read_end, write_end = os.pipe()
    with Run(
        "--nproc-per-node=4", SHOUT, "20000", launcher=into(write_end), pass_fds=[write_end]
    ) as run:
        os.close(write_end)
        eventually(lambda: "phalanx writer" in run.processes().values(), what="the writer")
        chunks: list[bytes] = []

        def read() -> None:
            while chunk := os.read(read_end, 65536):
                chunks.append(chunk)

        reader = threading.Thread(target=read)
        reader.start()
        assert run.wait() == 0
        reader.join(10)
    os.close(read_end)

    lines = b"".join(chunks).decode().splitlines()
    assert [len(own) for own in by_rank(lines, 4)] == [20000] * 4


def into(fd: int, *, both: bool = False) -> tuple[str, ...]:
    """phalanx with this as its stdout, and stderr too if it is to be both."""
    more = "2>&1" if both else ""
    return ("bash", "-c", f'exec "$@" >&{fd} {more} {fd}>&-', "bash", *PHALANX)


def test_a_stop_does_not_wait_for_a_reader_that_stands_still() -> None:
    read_end, write_end = os.pipe()
    try:
        with Run(
            "--nproc-per-node=2", SHOUT, "1000000", launcher=into(write_end), pass_fds=[write_end]
        ) as run:
            eventually(lambda: "phalanx writer" in run.processes().values(), what="the writer")
            run.signal(signal.SIGTERM)

            assert run.wait(20) == 120
            assert run.stderr == "phalanx: stopped on request (SIGTERM)\n"
            run.nothing_left()
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_reader_that_has_seen_enough_ends_the_job_as_it_would_a_program() -> None:
    """As in `phalanx ... | head -1`: the workers are told by SIGPIPE."""
    read_end, write_end = os.pipe()
    with Run(
        *sh("while :; do echo $RANK; done"), launcher=into(write_end), pass_fds=[write_end]
    ) as run:
        os.close(write_end)
        assert os.read(read_end, 1)
        os.close(read_end)

        assert run.wait(20) == 128 + signal.SIGPIPE
        run.nothing_left()

    assert "SIGPIPE" in run.stderr.splitlines()[0]
    assert "Traceback" not in run.stderr


def test_a_writer_that_is_killed_ends_the_job_with_its_name() -> None:
    with Run(*sh("echo up; exec sleep 1000")) as run:
        run.says("up")
        writer = next(pid for pid, line in run.processes().items() if line == "phalanx writer")
        os.kill(writer, signal.SIGKILL)

        assert run.wait(20) == 70
        run.nothing_left()

    assert run.stderr.splitlines()[-1] == (
        "phalanx: error: the writer of the workers' output was killed by SIGKILL"
    )


def test_our_own_lines_come_in_their_place(tmp_path: Path) -> None:
    """The line on a restart stands between what the rounds print."""
    script = "echo begin $PHALANX_ROUND >&2; exit $((PHALANX_ROUND == 0))"
    run = finished(*sh(script, "--max-restarts=1", workers=2))

    lines = run.stderr.splitlines()
    assert lines[:2] == ["begin 0"] * 2 or lines[0] == "begin 0"
    said = next(i for i, line in enumerate(lines) if "restart 1 of 1" in line)
    assert all(line == "begin 0" for line in lines[:said])
    assert lines[said + 1 :] == ["begin 1"] * 2


def test_a_low_limit_of_open_files_is_raised_for_many_workers_and_theirs_stays(
    tmp_path: Path,
) -> None:
    launcher = ("sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", *PHALANX)
    run = finished(*sh("ulimit -Sn", workers=80), launcher=launcher)

    assert run.process.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["256"] * 80


def test_a_stop_that_takes_its_time_says_why_it_was_begun(tmp_path: Path) -> None:
    script = (
        "if test $RANK = 1; then sleep 0.3; kill -KILL $$; fi\n"
        "trap '' TERM; while :; do sleep 0.1; done"
    )
    with Run(*sh(script, "--shutdown-timeout=7")) as run:
        run.says("; the others are being stopped\n")
        run.says("more for local rank 0 to stop (Ctrl-C twice kills now)")
        assert run.wait(30) == 137

    lines = run.stderr.splitlines()
    assert re.fullmatch(
        r"phalanx: rank 1 \(local rank 1, pid \d+\) was killed by SIGKILL; "
        "the others are being stopped", lines[0]
    )  # fmt: skip


def test_a_local_rank_that_is_not_there_is_noticed(tmp_path: Path) -> None:
    run = finished(*sh("true", f"--log-dir={tmp_path}", "--redirects=9:3"))

    assert run.stderr == (
        "phalanx: --redirects: there is no local rank 9, it is not a rank from 0 to 1\n"
    )


def test_after_a_stop_it_is_said_where_the_logs_are(tmp_path: Path) -> None:
    words = sh("echo up; echo up >&2; exec sleep 1000", "--redirects=1")
    with Run(*words, env={"TMPDIR": str(tmp_path)}) as run:
        run.says("up")
        run.signal(signal.SIGTERM)
        assert run.wait(20) == 120

    (line,) = [line for line in run.stderr.splitlines() if line.startswith("phalanx: logs: ")]
    assert Path(line.removeprefix("phalanx: logs: ")).is_dir()
