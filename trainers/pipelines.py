"""Code that the programs on Apache Beam share: their options, and a pipeline's run and errors."""

import builtins
import contextlib
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tf_transformer.base.files import remove_unfinished
from tf_transformer.beam import check_installed
from tf_transformer.config import BadInput

from .command import positive, quiet_stderr

SECONDS = 30  # between lines of progress


def add_pipeline_options(add: Callable[..., Any]) -> None:
    """Add the options of the runner; `add` is the parser's add_argument."""
    add("--workers", type=positive, metavar="N", help="processes on this machine (1)")
    add("--runner", metavar="NAME", help="a runner of Beam, e.g. FlinkRunner; its options follow -- (this machine)")


def split_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line's own arguments, and those after --, which are Beam's."""
    argv = list(argv)
    place = argv.index("--") if "--" in argv else len(argv)
    return argv[:place], argv[place + 1 :]


def load_beam() -> None:
    """Import apache_beam quietly: it warns of parts that are not installed.

    Raises:
        BadInput: it is not installed itself.
    """
    with quiet_stderr():
        check_installed()


def threads_of_a_worker(workers: int | None) -> int | None:
    """The threads that each of N workers on this machine gets for one operation; `None` leaves it to TensorFlow."""
    if (workers or 1) == 1 or "TF_NUM_INTRAOP_THREADS" in os.environ:
        return None
    return max(1, (os.cpu_count() or 1) // (workers or 1))


class Pipelines:
    """Runs pipelines on a runner.

    Args:
        workers: processes on this machine, `None` for one, which is this process itself.
        runner: the name of another runner.
        options: Beam's, as on a command line.
        log: a file for what Beam writes; `None` leaves it on standard error.

    Raises:
        BadInput: apache_beam is not installed, or options do not go together.
    """

    def __init__(
        self, workers: int | None, runner: str | None = None, options: Sequence[str] = (), log: Path | None = None
    ) -> None:
        load_beam()
        if workers and runner:
            raise BadInput(f"--workers: expected none with --runner, which has an option of its own, got {workers}")
        self.workers = workers or 1
        self.runner = runner
        self.options = list(options)
        self.log = log

    def run(self, build: Callable[[Any], object], progress: Callable[[], str] = str) -> None:
        """Build a pipeline and run it to its end.

        Args:
            build: adds transforms to the pipeline.
            progress: a line for standard error every 30 seconds; none if it is "".

        Raises:
            BadInput, OSError: what a worker raised of these.
            SystemExit: 3, after one line, if a worker process was killed.
        """
        pipeline, finished = self._pipeline(), threading.Event()
        killed: list[int] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                with pipeline:
                    build(pipeline)
            except BaseException as error:  # handed over to the thread that waits
                failed.append(error)
            finished.set()

        def hook(arguments: Any) -> None:
            """Beam notices a dead worker in a thread of its own, and waits for it for ever."""
            if found := re.search(r"Worker subprocess exited with return code (-?\d+)", str(arguments.exc_value)):
                if not finished.is_set():
                    killed.append(int(found[1]))
                finished.set()
            else:
                threading.__excepthook__(arguments)

        with _stderr_to(self.log) as say:
            before, threading.excepthook = threading.excepthook, hook
            try:
                thread = threading.Thread(target=work, daemon=True)
                thread.start()
                last = time.monotonic()
                while not finished.wait(1):
                    if time.monotonic() - last > SECONDS and (line := progress()):
                        say(line)
                        last = time.monotonic()
                if killed:
                    number = killed[0] - 128 if killed[0] > 128 else -killed[0]
                    how = f"was killed by signal {number}" if number > 0 else f"ended with status {killed[0]}"
                    self._end(f"error: a worker process {how}; start again to go on", 3, say)
            except (KeyboardInterrupt, SystemExit) as stopped:  # Ctrl-C, or another signal
                status = stopped.code if isinstance(stopped, SystemExit) else 130
                self._end("\nstopped; start it again with the same options to go on", status, say)
            finally:
                threading.excepthook = before
        if failed:
            raise _plain(failed[0]) from failed[0]

    def _pipeline(self) -> Any:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        if self.runner:
            try:
                return beam.Pipeline(self.runner, PipelineOptions(self.options))
            except (ImportError, ValueError) as error:
                raise BadInput(f"--runner: expected one of Beam's, with its options; {_line(error)}") from error
        from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
        from apache_beam.transforms.environments import SubprocessSDKEnvironment

        # The local runner for batches itself: the DirectRunner would first look for one that it downloads.
        options = PipelineOptions([*self.options, f"--direct_num_workers={self.workers}"])
        if self.workers == 1:
            return beam.Pipeline(FnApiRunner(), options)
        command = f"exec {shlex.quote(sys.executable)} -m {__package__}.pipelines {os.getpid()}"
        return beam.Pipeline(FnApiRunner(SubprocessSDKEnvironment.from_command_string(command)), options)

    def _end(self, line: str, status: Any, say: Callable[[str], None]) -> None:
        """End at once: a normal exit waits for threads of Beam that do not end. The workers notice."""
        say(line)
        sys.stdout.flush()
        remove_unfinished()
        os._exit(status)


@contextlib.contextmanager
def _stderr_to(log: Path | None) -> Iterator[Callable[[str], None]]:
    """Send standard error, that of child processes too, to a file; gives a function that still says a line there.

    It goes through a pipe: a worker that cannot write its error, because the disk is full, would never report it.
    """
    if log is None:
        yield lambda line: print(line, file=sys.stderr, flush=True)
        return
    file = open(log, "ab", 0)  # noqa: SIM115  (the thread closes it)
    sys.stderr.flush()
    kept = os.dup(2)
    end, begin = os.pipe()
    os.dup2(begin, 2)
    os.close(begin)

    def say(line: str) -> None:
        os.write(kept, f"{line}\n".encode())

    def copy() -> None:
        with open(end, "rb", 0) as pipe, file:
            while text := pipe.read(65_536):
                with contextlib.suppress(OSError):
                    file.write(text)

    threading.Thread(target=copy, daemon=True).start()
    try:
        yield say
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _line(error: BaseException) -> str:
    """The last line of an error's text."""
    return (str(error).strip().splitlines() or [""])[-1]


def _plain(error: BaseException) -> BaseException:
    """What a worker raised, if it was bad input or an error of the operating system: Beam gives its text."""
    line = re.sub(r" \[while running '[^']*'\]$", "", _line(error))
    if isinstance(error, BadInput):  # this process was the worker
        return BadInput(line)
    if found := re.fullmatch(r"(?:RuntimeError: )*([\w.]+): (.*)", line):
        kind = getattr(builtins, found[1], None)
        if found[1].endswith("BadInput"):
            return BadInput(found[2])
        if isinstance(kind, type) and issubclass(kind, OSError):
            return OSError(found[2])
    return error


def _work_for(parent: int) -> None:
    """A worker process: Beam's own, which ends when the program that started it has gone."""
    from apache_beam.runners.worker import sdk_worker_main

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        remove_unfinished()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    sdk_worker_main.main(sys.argv[:1])


if __name__ == "__main__":
    _work_for(int(sys.argv[1]))
