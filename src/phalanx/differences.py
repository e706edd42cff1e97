"""The table of differences from torchrun: what, why, how to have torchrun's way, and the proof.

Each row names the test that shows it. `docs/differences.md` is made from this table (`page`). What
is not in it is meant to be as in torchrun of torch 2.13: the same command line, the same variables.
"""

# ruff: noqa: E501 - a cell of the table is one string

from __future__ import annotations

from phalanx.record import Record

__all__ = ["DIFFERENCES", "GROUPS", "Difference", "page"]

#: Headings of the page, in order.
GROUPS = (
    "Command line",
    "Rendezvous, addresses and ports",
    "What a worker sees",
    "Starting and noticing",
    "Stopping",
    "Failures",
    "Output and files",
    "Not yet",
)


class Difference(Record):
    """One row. All texts are phrases for a cell of a table."""

    group: str
    what: str
    torchrun: str
    phalanx: str
    why: str
    #: The test that shows it: "tests/FILE.py::NAME".
    test: str
    #: How to have torchrun's way.
    restore: str = "none"


def page() -> str:
    """`docs/differences.md`."""
    lines = [
        "# Differences from torchrun",
        "",
        "Generated from the table in `phalanx.differences` (`make docs`); do not edit.",
        "",
        "`phalanx` in place of `torchrun` runs the same command line with the same worker",
        "environment, but for what is listed here. Compared with torchrun of torch 2.13; each row is",
        "shown by the test that it names. *Way back*: how to have it as in torchrun.",
    ]
    for group in GROUPS:
        lines += ["", f"## {group}", "", "| what | torchrun | phalanx | why | way back | test |"]
        lines.append("| --- | --- | --- | --- | --- | --- |")
        for row in DIFFERENCES:
            if row.group == group:
                test = f"`{row.test.rpartition('::')[2]}`"
                cells = (row.what, row.torchrun, row.phalanx, row.why, row.restore, test)
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "Command line",
        "script arguments that begin like options",
        torchrun="`train.py --log x` is refused as an ambiguous `--log-dir`, exit code 2",
        phalanx="what follows the script is the script's, always",
        why="options of a script are none of the launcher's business",
        test="tests/test_differences.py::test_script_arguments_are_never_taken_for_options",
    ),
    Difference(
        "Command line",
        "`--` directly after the script",
        torchrun="is taken away",
        phalanx="is the script's",
        why="as above",
        test="tests/test_differences.py::test_two_dashes_after_the_script_are_the_scripts",
    ),
    Difference(
        "Command line",
        "`$$` in an argument",
        torchrun="becomes `$`",
        phalanx="stays; only `${local_rank}` and `$local_rank` are filled in",
        why="passwords and regular expressions arrive as they were typed",
        test="tests/test_differences.py::test_two_dollars_stay_two",
    ),
    Difference(
        "Command line",
        "abbreviations such as `--nproc`",
        torchrun="refused where the two spellings of one option differ later",
        phalanx="accepted: two spellings are one option",
        why="there is nothing to confuse",
        test="tests/test_differences.py::test_one_option_in_two_spellings_is_not_ambiguous",
    ),
    Difference(
        "Command line",
        "a wrong command line",
        torchrun="usage text and exit code 2, or a traceback and 1",
        phalanx="two lines, what is wrong and what to do, and exit code 64",
        why="a slip needs no traceback",
        test="tests/test_differences.py::test_a_wrong_command_line_is_two_lines_and_64",
    ),
    Difference(
        "Command line",
        "`PET_*` variables of flags",
        torchrun="whole numbers; anything else is a traceback",
        phalanx="also true, false, yes, no, on, off, in any case",
        why="people write that",
        test="tests/test_differences.py::test_flag_variables_take_words",
    ),
    Difference(
        "Command line",
        "`PET_*` variables of choices",
        torchrun="not checked: `PET_START_METHOD=bogus` passes",
        phalanx="checked like the option",
        why="a slip is found where it is made",
        test="tests/test_differences.py::test_choices_of_variables_are_checked",
    ),
    Difference(
        "Command line",
        "options of its own",
        torchrun="nothing of the kind",
        phalanx="`--version`, `--stop-signal-to`, `--store`, `--omp`, `--dry-run`, `--json`",
        why="see [options](reference/options.md)",
        test="tests/test_differences.py::test_options_of_our_own",
    ),
    Difference(
        "Command line",
        "`--rdzv-conf` keys",
        torchrun="unknown ones are ignored in silence; some are a traceback (`backend`, `max_nodes`)",
        phalanx="unknown ones are ignored with one line",
        why="a typing mistake should be seen",
        test="tests/test_differences.py::test_unknown_settings_of_the_rendezvous_are_named",
    ),
    Difference(
        "Command line",
        "`--rdzv-conf` values",
        torchrun="timeouts and the like of a rendezvous",
        phalanx="no effect and not checked: one node waits for nobody",
        why="not yet on several nodes",
        test="tests/test_differences.py::test_settings_of_the_rendezvous_have_no_effect_on_one_node",
    ),
    Difference(
        "Command line",
        "`--signals-to-handle`",
        torchrun="KILL or STOP is a traceback; workers get the list as it was typed",
        phalanx="KILL, STOP and CHLD are refused; TORCHELASTIC_SIGNALS_TO_HANDLE holds the names that there are",
        why="they cannot be handled; CHLD tells phalanx of its children's ends",
        test="tests/test_differences.py::test_signals_that_cannot_be_handled",
    ),
    Difference(
        "Command line",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
        torchrun="below 0 passes, text is a traceback",
        phalanx="checked; a timeout above 1,000,000 s is cut to that, with a line",
        why="a slip is found where it is made",
        test="tests/test_differences.py::test_torchs_shutdown_variable_is_checked",
    ),
    Difference(
        "Command line",
        "`--nproc-per-node` with the name of a private device",
        torchrun="the number of those devices",
        phalanx="refused: only cpu, gpu, xpu and auto (and at most 65536 workers)",
        why="not yet",
        restore="give the number",
        test="tests/test_differences.py::test_a_word_for_a_device_that_we_do_not_know",
    ),
    Difference(
        "Command line",
        "`--node-rank` beyond the number of nodes",
        torchrun="waits until a timeout",
        phalanx="refused",
        why="it can never work",
        test="tests/test_differences.py::test_a_node_rank_beyond_the_nodes",
    ),
    Difference(
        "Command line",
        "the old form, `python -m torch.distributed.launch`",
        torchrun="a FutureWarning, then as torchrun, with `--local-rank=N` as the script's first argument unless `--use-env` is given",
        phalanx="`python -m phalanx.launch`, without the warning; `phalanx --use-env` is refused",
        why="old scripts run on",
        test="tests/test_differences.py::test_the_old_form_is_a_module_of_its_own",
    ),
    Difference(
        "Command line",
        "`elastic_launch` and the rest of the Python interface",
        torchrun="in `torch.distributed.launcher`",
        phalanx="none: phalanx is a command",
        why="phalanx does not import torch, nor torch phalanx",
        test="tests/test_differences.py::test_there_is_no_python_interface",
    ),
    Difference(
        "Command line",
        "plug-in back ends (`--rdzv-backend` of the entry points `torchrun.handlers`)",
        torchrun="loaded",
        phalanx="refused with words",
        why="they are made of torch's classes",
        test="tests/test_differences.py::test_plug_in_back_ends_are_refused",
    ),
    Difference(
        "Command line",
        "`--logs-specs`",
        torchrun="loads a plug-in of the entry points `torchrun.logs_specs`",
        phalanx="anything but `default` is refused with words",
        why="as above",
        test="tests/test_differences.py::test_plug_ins_for_logs_are_refused",
    ),
    Difference(
        "Command line",
        "`store_type` in `--rdzv-conf`",
        torchrun="`file`: nodes meet at a file, which the endpoint names",
        phalanx="`file` is ignored with a line on one node; anything but `tcp` and `file` is refused",
        why="one node has nobody to meet",
        test="tests/test_differences.py::test_a_file_to_meet_at_is_not_needed",
    ),
    Difference(
        "Command line",
        "`--event-log-handler`",
        torchrun="`console` prints events as JSON (the time always 0, numbers in lists); `dynamic_rendezvous`",
        phalanx="ignored with a line; a name that does not exist is refused",
        why="nobody could read them",
        test="tests/test_differences.py::test_event_handlers_are_said_to_be_without_effect",
    ),
    Difference(
        "Command line",
        "`--start-method`",
        torchrun="how the children of `--run-path` are made",
        phalanx="no effect; with `--run-path` that is said in a line",
        why="all workers are fresh interpreters",
        test="tests/test_differences.py::test_the_start_method_has_no_effect",
    ),
    Difference(
        "Rendezvous, addresses and ports",
        "MASTER_PORT and the workers' store, when no port is named",
        torchrun="one port and one store for the whole life of the agent; keys of dead workers meet new ones",
        phalanx="a fresh, empty store on a fresh port in every round",
        why="`init_process_group` failed in 6 of 8 restarts",
        restore="a port that is named (`--master-port`) stays; its store is empty in every round, too",
        test="tests/test_differences.py::test_the_store_of_a_round_is_empty",
    ),
    Difference(
        "Rendezvous, addresses and ports",
        "port 0 (`--master-port=0`, static endpoint)",
        torchrun="MASTER_PORT is 0 and nobody can connect",
        phalanx="any free port",
        why="it means that everywhere else",
        test="tests/test_differences.py::test_master_port_zero_is_a_free_one",
    ),
    Difference(
        "Rendezvous, addresses and ports",
        "MASTER_ADDR of a c10d or standalone job",
        torchrun="this host's full name, looked up",
        phalanx="`localhost`, or the `--local-addr` as it was typed",
        why="names that do not resolve, and slow resolvers, are common",
        restore="`--local-addr=$(hostname -f)` with `--rdzv-backend=c10d`",
        test="tests/test_differences.py::test_the_address_is_the_one_given_and_no_name_is_looked_up",
    ),
    Difference(
        "Rendezvous, addresses and ports",
        "what listens during a job on one node",
        torchrun="two stores, on all interfaces; what is sent to one of them is unpickled",
        phalanx="the workers' store, on loopback (on all interfaces if MASTER_ADDR is no loopback name)",
        why="nobody else has business there",
        test="tests/test_differences.py::test_on_one_node_only_the_workers_store_listens_and_on_loopback",
    ),
    Difference(
        "Rendezvous, addresses and ports",
        "a `/` in `--rdzv-id`",
        torchrun="a traceback",
        phalanx="works; the folder's name has `_` for it",
        why="such ids are common",
        test="tests/test_differences.py::test_a_run_id_with_a_slash",
    ),
    Difference(
        "Rendezvous, addresses and ports",
        "the server of the workers' store",
        torchrun="torch's own, whatever the workers' torch is",
        phalanx="one that speaks to torch 2.2 and later; older ones are refused with a line",
        why="their protocol was another",
        test="tests/store/test_server.py::test_old_clients_and_strangers_are_closed_and_reported_once_per_address",
    ),
    Difference(
        "Rendezvous, addresses and ports",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE, TORCH_ELASTIC_WORKER_IDENTICAL, USE_LIBUV",
        torchrun="change who serves the store, how ranks are agreed, which server is used",
        phalanx="no effect; TORCHELASTIC_USE_AGENT_STORE is always `True`",
        why="the faults they work around are not here",
        test="tests/test_differences.py::test_settings_of_torchs_store_and_rank_exchange_have_no_effect",
    ),
    Difference(
        "What a worker sees",
        "PHALANX_ROUND",
        torchrun="nothing of the kind",
        phalanx="the number of the round, which never goes back",
        why="guards what a worker writes against one of an older round",
        test="tests/test_differences.py::test_workers_are_told_the_round",
    ),
    Difference(
        "What a worker sees",
        "TORCHELASTIC_ERROR_FILE with a relative `--log-dir`",
        torchrun="relative: lost when the worker changes directory",
        phalanx="absolute",
        why="the traceback arrives",
        restore="give `--log-dir` as it should be",
        test="tests/test_differences.py::test_error_files_of_a_relative_log_directory_are_absolute",
    ),
    Difference(
        "What a worker sees",
        "SIGINT or SIGQUIT that was ignored at the start (`phalanx ... &` in a script)",
        torchrun="is passed on to workers that ignore it, and kills them at the end of the grace",
        phalanx="is passed on as SIGTERM",
        why="workers can save",
        test="tests/test_stopping.py::"
        "test_an_interrupt_that_was_ignored_at_the_start_stops_the_workers_with_term",
    ),
    Difference(
        "What a worker sees",
        "SIGHUP under `nohup`",
        torchrun="handled by torchrun and at its default in workers: the job ends with the terminal",
        phalanx="ignored by both, as at the start",
        why="it is what nohup asks for",
        test="tests/test_differences.py::test_a_hangup_that_is_ignored_at_the_start_stays_ignored",
    ),
    Difference(
        "What a worker sees",
        "descriptors above 2 that the launcher was given",
        torchrun="closed in workers",
        phalanx="handed down to workers, as a shell does",
        why="sockets and job servers can be passed on",
        restore="close them: `phalanx ... 3>&-`",
        test="tests/test_differences.py::test_descriptors_that_phalanx_was_given_reach_the_workers",
    ),
    Difference(
        "What a worker sees",
        "`--run-path` workers",
        torchrun="children by multiprocessing, in the launcher's session, by `--start-method`",
        phalanx="fresh interpreters, each leading a session, as all workers",
        why="one way to start, one way to stop",
        test="tests/test_differences.py::test_run_path_workers_are_fresh_and_lead_a_session",
    ),
    Difference(
        "What a worker sees",
        "a `--run-path` script that ends with a bare `sys.exit()`",
        torchrun="hangs for ever",
        phalanx="ends with 0",
        why="a fault",
        test="tests/test_differences.py::test_a_bare_exit_ends_a_run_path_worker",
    ),
    Difference(
        "What a worker sees",
        "the parent of a worker",
        torchrun="the launcher",
        phalanx="the fork server, a process of phalanx; SIGKILL comes when it dies",
        why="it clears what the job started when the launcher is killed",
        test="tests/test_differences.py::test_a_workers_parent_is_the_fork_server",
    ),
    Difference(
        "Starting and noticing",
        "a script, module or program that is not there",
        torchrun="every worker is started and fails with lines of its own, exit code 1",
        phalanx="one line before anything is started, exit code 66",
        why="nothing to read twice",
        test="tests/test_differences.py::test_what_cannot_run_is_found_before_anything_is_started",
    ),
    Difference(
        "Starting and noticing",
        "a port in use, too few devices, a log directory that cannot be made",
        torchrun="a traceback, exit code 1",
        phalanx="two lines, exit codes 69 and 73",
        why="it is no failure of the program",
        test="tests/test_bad_input.py::test_a_named_port_that_is_in_use",
    ),
    Difference(
        "Starting and noticing",
        "a process limit that is met while workers are started",
        torchrun="a traceback; the workers already started live on",
        phalanx="two lines, exit code 71, nothing left",
        why="no orphans",
        test="tests/test_bad_input.py::test_a_process_limit",
    ),
    Difference(
        "Starting and noticing",
        "a signal before the workers are started",
        torchrun="its default action",
        phalanx="stops the job as at any other time",
        why="handlers come first",
        test="tests/test_rendezvous.py::test_a_stop_request_before_the_node_has_joined_ends_the_job",
    ),
    Difference(
        "Starting and noticing",
        "`--monitor-interval`",
        torchrun="how often workers are looked at, 0.1 s",
        phalanx="checked, without effect: ends are noticed when they happen",
        why="nothing is polled",
        test="tests/test_differences.py::test_the_monitor_interval_has_no_effect",
    ),
    Difference(
        "Stopping",
        "who gets the stop signal",
        torchrun="the process group of each worker",
        phalanx="the worker itself; its helpers (data loaders) when it is gone or time runs out; with `--no-python` the group",
        why="a worker can save while its loaders live",
        restore="`--stop-signal-to=group`",
        test="tests/test_differences.py::test_the_stop_signal_goes_to_the_leader_first",
    ),
    Difference(
        "Stopping",
        "`--shutdown-timeout`",
        torchrun="only when the launcher got a signal; after a failure 30 s, always",
        phalanx="whatever the reason of the stop",
        why="it is what the option says",
        test="tests/test_differences.py::test_the_shutdown_timeout_holds_after_a_failure_too",
    ),
    Difference(
        "Stopping",
        "grace on a signal, when not given",
        torchrun="30 s",
        phalanx="27 s",
        why="schedulers kill after 30 s, and the report should come before that",
        restore="`--shutdown-timeout=30`",
        test="tests/test_rendezvous.py::test_member_stops_with_the_grace_of_the_reason_or_the_users",
    ),
    Difference(
        "Stopping",
        "helpers of a worker that has ended",
        torchrun="live on",
        phalanx="are stopped, and killed at the end of the grace",
        why="they hold memory, ports and devices",
        test="tests/test_differences.py::test_helpers_are_gone_when_phalanx_is",
    ),
    Difference(
        "Stopping",
        "a second signal",
        torchrun="SIGTERM to the workers and the grace anew; a third leaves orphans",
        phalanx="a second SIGINT kills at once; others change nothing; two within 0.2 s are one",
        why="impatience at a keyboard is meant",
        test="tests/test_differences.py::test_a_second_interrupt_kills_at_once",
    ),
    Difference(
        "Stopping",
        "the launcher is killed",
        torchrun="workers live on as orphans",
        phalanx="all that the job started is killed within 2 s",
        why="no orphans",
        test="tests/test_differences.py::test_nothing_outlives_a_killed_agent",
    ),
    Difference(
        "Stopping",
        "a worker that cannot be killed",
        torchrun="given up after a while; may exit with 0",
        phalanx="named with where in the kernel it waits, after 10 s; exit code 121",
        why="the machine needs a look",
        test="tests/test_stop_machine.py::test_what_cannot_be_killed_counts_as_gone_after_ten_seconds",
    ),
    Difference(
        "Stopping",
        "SIGUSR1 and SIGUSR2 to the launcher",
        torchrun="kill it; workers live on",
        phalanx="are handed on to the workers, and the job goes on",
        why="schedulers send them as warnings",
        restore="`--signals-to-handle` with them in it makes them stop the job",
        test="tests/test_differences.py::test_user_signals_are_handed_on_and_the_job_goes_on",
    ),
    Difference(
        "Stopping",
        "exit code after a signal to the launcher",
        torchrun="1, and a traceback",
        phalanx="120, and one line",
        why="a stop on request is no failure",
        test="tests/test_differences.py::test_a_stop_on_request_has_an_exit_code_of_its_own",
    ),
    Difference(
        "Failures",
        "exit code after a worker's failure",
        torchrun="1",
        phalanx="the first failure's own, 128 + n for a signal",
        why="scripts and schedulers can act on it ([exit codes](reference/exit-codes.md))",
        test="tests/test_differences.py::test_exit_codes_are_the_workers_own",
    ),
    Difference(
        "Failures",
        "the report",
        torchrun="a traceback of torchrun with a table in it (`Root Cause (first observed failure)`), and lines of its log",
        phalanx="one line: the rank that failed first and how it died; not yet: the worker's traceback from its error file, the others",
        why="the first failure is what matters",
        test="tests/test_differences.py::test_the_report_of_a_failure_is_a_line_and_no_traceback_of_ours",
    ),
    Difference(
        "Failures",
        "TORCHELASTIC_ERROR_FILE of the launcher itself",
        torchrun="gets a copy of the first failure's error file",
        phalanx="is not written",
        why="not yet",
        test="tests/test_differences.py::test_the_error_file_of_the_launcher_itself_is_not_written",
    ),
    Difference(
        "Failures",
        "an error file that cannot be read",
        torchrun="ends the launcher with a traceback, no restart",
        phalanx="no trouble: it is not read",
        why="a fault",
        test="tests/test_differences.py::test_an_odd_error_file_is_no_trouble",
    ),
    Difference(
        "Failures",
        "TORCHELASTIC_ENABLE_FILE_TIMER, _HEALTH_CHECK_PORT, _UNINTERRUPTIBLE_STATE_TIMEOUT",
        torchrun="a watchdog that kills the launcher, too; a warning; a watch for workers stuck in the kernel that exits 0",
        phalanx="no effect, said in a line each; TORCHELASTIC_TIMER_FILE is not set",
        why="two are faults, one does nothing",
        test="tests/test_differences.py::test_watchdog_health_check_and_d_state_settings_are_said_to_have_no_effect",
    ),
    Difference(
        "Output and files",
        "OMP_NUM_THREADS=1 for several workers",
        torchrun="said in a banner of four lines",
        phalanx="done and not said",
        why="the docs say it",
        test="tests/test_differences.py::test_no_banner_about_omp_num_threads",
    ),
    Difference(
        "Output and files",
        "warnings about `--master-addr`",
        torchrun="with c10d and no endpoint, even if it was not given",
        phalanx="none",
        why="a fault",
        test="tests/test_differences.py::test_no_warnings_about_what_was_not_asked_for",
    ),
    Difference(
        "Output and files",
        "the temporary log directory",
        torchrun="`torchelastic_*` in $TMPDIR, left behind by every run",
        phalanx="`phalanx_*`, removed at the end; if a failed job has left files in it, a line "
        "says where",
        why="disks fill",
        restore="`--log-dir` keeps it",
        test="tests/test_differences.py::test_the_temporary_directory_goes_when_all_is_well",
    ),
    Difference(
        "Output and files",
        "LOGLEVEL",
        torchrun="sets how much torchrun logs; a level that does not exist is a traceback",
        phalanx="INFO and DEBUG, in any case, tell each start and end in a line; the rest is as "
        "without",
        why="one line per event that matters is enough by default",
        test="tests/test_differences.py::test_loglevel_info_tells_what_is_done",
    ),
    Difference(
        "Output and files",
        "a restart",
        torchrun="silent by default, but for log lines of the stop",
        phalanx="one line: who failed, how, and which restart it is",
        why="a person knows what goes on",
        test="tests/test_differences.py::test_a_restart_is_said_in_a_line",
    ),
    Difference(
        "Not yet",
        "several nodes",
        torchrun="`--nnodes=2`, `--nnodes=1:4`",
        phalanx="refused, exit code 69",
        why="not yet",
        test="tests/test_differences.py::test_several_nodes_are_refused",
    ),
    Difference(
        "Not yet",
        "etcd",
        torchrun="`--rdzv-backend=etcd`, `etcd-v2`, and plug-ins",
        phalanx="refused",
        why="they serve jobs on several nodes",
        test="tests/test_differences.py::test_etcd_is_refused",
    ),
    Difference(
        "Not yet",
        "`--redirects`, `--tee`, `--local-ranks-filter`, `--duplicate-*-filters`",
        torchrun="files, prefixes, filters (and TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE)",
        phalanx="checked, and said in a line to be without effect: all output goes to the console as it is",
        why="not yet",
        test="tests/test_differences.py::test_redirects_tee_and_filters_are_said_to_be_without_effect",
    ),
    Difference(
        "Not yet",
        "`--numa-binding`",
        torchrun="binds workers to CPUs near their device",
        phalanx="checked, and said to be without effect",
        why="not yet",
        test="tests/test_differences.py::test_numa_binding_is_said_to_be_without_effect",
    ),
)
