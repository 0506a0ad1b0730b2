"""Printing on terminals of all kinds, and to readers that go away."""

import ast
import io
import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from programs import ROOT

from tf_transformer.utils import terminal
from tf_transformer.utils.terminal import say


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("ascii", r"T\xfcr \u2192 \U0001f600 \ud83d"),
        ("latin-1", r"Tür \u2192 \U0001f600 \ud83d"),
        ("utf-8", "Tür → 😀 \\ud83d"),
    ],
)
def test_unencodable_characters_are_printed_as_escapes(encoding, expected, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding))
    say("Tür → 😀 \ud83d", end="!")
    assert written.getvalue().decode(encoding) == f"{expected}!"


@pytest.mark.parametrize("stream", [None, SimpleNamespace(write=len, flush=int)])
def test_a_service_has_no_terminal(stream, monkeypatch):
    monkeypatch.setattr("sys.stdout", stream)
    say("Tür")


def test_only_terminal_py_prints():
    without_package = {"check.py", "loader.py", "probe.py", "litert_client.py"}
    exempt = {"terminal.py"} | without_package
    for path in (ROOT / "tf_transformer").rglob("*.py"):
        calls = (node.func for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call))
        names = {name.id for name in calls if isinstance(name, ast.Name)}
        assert path.name in exempt or "print" not in names, path


def program(main, command="", **environment):
    """Returns the status, output and standard error of a program, followed by the rest of a shell's `command`."""
    code = f"from trainers.command import run_program\ndef main():\n    {main}\nrun_program(main)"
    shell = f'"$0" -c "$1" {command}; exit ${{PIPESTATUS[0]}}'
    environment = os.environ | {"PYTHONUTF8": "0", "PYTHONUNBUFFERED": ""} | environment
    process = subprocess.run(
        ["bash", "-c", shell, sys.executable, code], cwd=ROOT, env=environment, capture_output=True, timeout=120
    )
    return process.returncode, process.stdout, process.stderr.decode()


def test_a_program_ends_quietly_when_its_reader_goes_away():
    buffered = "import sys; sys.stdout.buffer.writelines([b'Two doors.\\n'] * 99999)"
    for main in ("for _ in range(99999): print('Two doors.')", buffered):
        assert program(main, "| head -n 1") == (141, b"Two doors.\n", "")
    assert program("import time; time.sleep(0.3); print('late')", "| true") == (141, b"", "")
    assert program("print('all')", "> /dev/full") == (2, b"", "error: [Errno 28] No space left on device\n")
    for main, closed in (("print('all')", ">&-"), ("print(__import__('sys').stdin.read(), end='')", "<&-")):
        assert program(main, closed) == (0, b"", "")
    assert program("print('all')", "| cat") == (0, b"all\n", "")
    umlauts = program("print(chr(252), chr(0x2192)); raise OSError(chr(252))", PYTHONIOENCODING="ascii")
    assert umlauts == (2, b"\\xfc \\u2192\n", "error: \\xfc\n")


def test_a_program_s_end_does_not_wait_for_tensorflow():
    """An unexpected error shows its traceback at once."""
    at_exit = "import atexit, sys; atexit.register(lambda: print('tensorflow' in sys.modules)); "
    status, output, errors = program(f"{at_exit}raise KeyError('own')")
    assert (status, output) == (1, b"False\n") and errors.endswith("\nKeyError: 'own'\n")
    stopped = "from tf_transformer.utils.terminal import TrainingInterrupted as Stop; "
    stopped += "raise Stop('stopped after saving step 7', 15)"
    line = "\nstopped after saving step 7; start it again with the same options to resume\n"
    assert program(at_exit + stopped) == (143, b"False\n", line)


@pytest.mark.parametrize(
    ("number", "errors"), [(15, ""), (2, "\nstopped; start it again with the same options to resume\n")]
)
def test_a_signal_while_c_code_runs_has_no_traceback(number, errors, ctrl_c):
    """While TensorFlow traces a function, its C++ code can turn the exception of a signal into another."""
    signal = f"__import__('signal').raise_signal({number})"
    replaced = f"try: {signal}\n    except BaseException: raise SystemError('C++') from None"
    assert program(replaced) == (128 + number, b"", errors)


@pytest.mark.parametrize(("number", "status", "errors"), [(15, 143, ""), (2, 130, ""), (0, 1, "saved step 7\n")])
def test_an_interrupted_script_exits_with_its_status(number, status, errors):
    script = (
        f"from tf_transformer.utils.terminal import TrainingInterrupted as Stop\nraise Stop('saved step 7', {number})"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", errors)


@pytest.mark.parametrize("closed", ["", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_output_of_a_library_is_dropped_with_and_without_a_standard_error(closed, tmp_path):
    """No other file receives it."""
    lines = [
        "import os, sys",
        "file = open(sys.argv[1], 'w')",
        "from tf_transformer.utils.terminal import quiet_stderr",
        "with quiet_stderr():",
        "    os.write(2, b'W0000 00:00:1.2 3 a.cc:4] warning\\n') if sys.__stderr__ else None",
        "file.write('written')",
        "file.close()",
    ]
    command = ["sh", "-c", f'"$0" -c "$1" "$2" {closed}', sys.executable, "\n".join(lines), str(tmp_path / "file")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "file").read_text() == "written"


LOGGED_BY_C = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795962176.833187   13534 port.cc:153] oneDNN custom operations are on.",
    "E0000 00:00:1795962541.179010   16440 cuda_platform.cc:52] failed call to cuInit",
    "2026-11-29 14:00:00.123456: W tensorflow/core/framework/op.cc:1] an earlier version",
    "normalizer.cc(52) LOG(INFO) precompiled_charsmap is empty. use identity normalization.",
]
OF_OTHERS = [
    "epoch 3: loss 1.5",
    "Traceback (most recent call last):",
    "F0000 00:00:1.2 3 a.cc:4] Check failed",
    "2026 \u00fc",
]


def test_only_what_c_libraries_log_is_dropped():
    """Lines of another thread, and of a child process, appear after the block."""
    program = """
import subprocess, sys, threading
from tf_transformer.utils.terminal import quiet_stderr
def tell(lines):
    for line in lines:
        print(line, file=sys.stderr, flush=True)
with quiet_stderr():
    thread = threading.Thread(target=tell, args=[LINES])
    thread.start()
    thread.join()
    subprocess.run(["sh", "-c", "echo of a child >&2"])
print("after", file=sys.stderr)
"""
    lines = [line for pair in itertools.zip_longest(LOGGED_BY_C, OF_OTHERS) for line in pair if line]
    command = [sys.executable, "-c", program.replace("LINES", repr(lines))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "utf-8"})
    assert done.stderr.decode().splitlines() == [*OF_OTHERS, "of a child", "after"]


@pytest.mark.parametrize("chosen", [None, "0", "2"])
def test_the_log_level_of_the_program_around_stays(chosen, monkeypatch):
    """Its children have the level that the user chose, or none. test_names.py starts such a program."""
    for name in ("keras", "tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delenv(terminal.LOG_LEVEL, raising=False)
    if chosen:
        monkeypatch.setenv(terminal.LOG_LEVEL, chosen)
    with terminal.quiet_import():
        assert os.environ[terminal.LOG_LEVEL] == (chosen or terminal.WITHOUT_INFORMATION)
    assert os.environ.get(terminal.LOG_LEVEL) == chosen


def test_progress_overwrites_one_line(monkeypatch):
    clock, stream = iter(range(0, 1_000, 2)), io.StringIO()
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr("sys.stderr", stream)
    lines = []
    for watched in (True, False):
        monkeypatch.setattr(terminal, "is_watched", lambda stream, watched=watched: watched)
        with terminal.Progress(17, "texts") as progress:
            for count in (2, 2, 4, 4, 4, 1):
                progress.add(count)
        lines.append([line.rstrip() for line in stream.getvalue().lstrip("\r").split("\r")])
        stream.seek(0)
        stream.truncate()
    first, *more, last, empty = lines[0]
    assert first == "4 of 17 texts, 1 a second, less than a minute to go"
    assert [line[:8] for line in (*more, last)] == ["8 of 17 ", "12 of 17", "16 of 17", ""] and not empty
    assert lines[1] == [""]


def test_durations_are_rounded():
    words = {29: "less than a minute", 61: "about 1 minute", 1e3: "about 17 minutes", 7e3: "about 2 hours"}
    assert {seconds: terminal.duration(seconds) for seconds in words} == words
