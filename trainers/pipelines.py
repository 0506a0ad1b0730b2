"""Shares a program's work among processes of this machine, or in a pipeline on a runner of Apache Beam."""

import concurrent.futures
import contextlib
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from tf_transformer.config import BadInput
from tf_transformer.extensions.beam import check_installed
from tf_transformer.utils.files import remove_unfinished
from tf_transformer.utils.terminal import quiet_stderr

from .command import positive

SECONDS = 30  # between lines of progress
STOPPED = 128 + signal.SIGTERM  # exit status of a process that this program stopped


def add_pipeline_options(add: Callable[..., Any]) -> None:
    """Adds the options of workers and runners. `add` is the parser's add_argument."""
    add("--workers", type=positive, metavar="N", help="processes on this machine (1)")
    add_runner(add)


def add_runner(add: Callable[..., Any]) -> None:
    """Adds the option of a runner. `add` is the parser's add_argument."""
    add("--runner", metavar="NAME", help="runner of Apache Beam, such as FlinkRunner, with options after -- (none)")


def split_options(argv: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Returns the arguments before --, and those after it, which are Beam's. `None` means those of the command line."""
    argv = list(sys.argv[1:] if argv is None else argv)
    end = argv.index("--") if "--" in argv else len(argv)
    return argv[:end], argv[end + 1 :]


def check_options(workers: int | None, runner: str | None, beams: Sequence[str]) -> None:
    """Raises `BadInput` if the options of workers and runners exclude each other."""
    if workers and runner:
        raise BadInput(f"--workers: expected none with --runner, which has an option of its own, got {workers}")
    if beams and not runner:
        raise BadInput("--: expected --runner before Beam's options")


def load_beam() -> None:
    """Imports apache_beam, or raises `BadInput` if it is not installed."""
    # Beam warns about parts that are not installed, in C++ and in Python.
    with quiet_stderr(), contextlib.redirect_stderr(io.StringIO()):
        check_installed()


def threads_of_a_worker(workers: int | None) -> int | None:
    """Returns the threads of each worker on this machine for one operation. `None` leaves it to TensorFlow."""
    if (workers or 1) == 1 or "TF_NUM_INTRAOP_THREADS" in os.environ:
        return None
    return max(1, (os.cpu_count() or 1) // (workers or 1))


def pipeline_on(runner: str | None, options: Sequence[str]) -> Any:
    """Returns an empty pipeline for one of Beam's runners, with options of a command line, or `None` without one.

    Call it before any work, since it checks the options.
    """
    if not runner:
        return None
    load_beam()
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    try:
        return beam.Pipeline(runner, PipelineOptions(list(options)))
    except (ImportError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [""])[-1]
        raise BadInput(f"--runner: expected one of Beam's, with its options; {reason}") from error


@contextlib.contextmanager
def processes(workers: int, log: Path, progress: Callable[[], str]) -> Iterator[Callable[..., list[Any]]]:
    """Yields a function like `map` that shares its work among processes and returns when all is done.

    One worker is this process itself. The others write their standard error to `log`. An exception of a worker is
    raised here. If a worker was killed, the program exits with 3, after one line. `progress` makes a line for
    standard error every 30 seconds.
    """

    def one_by_one(function: Callable[..., Any], *items: Sequence[Any]) -> list[Any]:
        results, printed = [], time.monotonic()
        for item in zip(*items, strict=True):
            results.append(function(*item))
            if time.monotonic() - printed > SECONDS:
                print(progress(), file=sys.stderr, flush=True)
                printed = time.monotonic()
        return results

    if workers == 1:
        yield one_by_one
        return
    # Not "fork", which copies none of the threads that TensorFlow may have started.
    pool = concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (log,))
    children = dict[int | None, multiprocessing.process.BaseProcess]()

    def each(function: Callable[..., Any], *items: Sequence[Any]) -> list[Any]:
        # Workers start when work is submitted, and inherit this: only this process handles Ctrl-C.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            futures = [pool.submit(function, *item) for item in zip(*items, strict=True)]
        finally:
            signal.signal(signal.SIGINT, before)
        children.update((child.pid, child) for child in multiprocessing.active_children())
        pending = set(futures)
        while pending:
            done, pending = concurrent.futures.wait(pending, SECONDS, concurrent.futures.FIRST_EXCEPTION)
            for future in done:
                future.result()
            if pending:
                print(progress(), file=sys.stderr, flush=True)
        return [future.result() for future in futures]

    try:
        yield each
    except BrokenProcessPool:
        # The pool has stopped the other workers, so their status is meaningless.
        pool.shutdown()
        statuses = sorted((child.exitcode or 0 for child in children.values()), key=lambda status: status == STOPPED)
        status = next(filter(None, statuses), 1)
        number = status - 128 if status > 128 else -status
        how = f"was killed by signal {number}" if number > 0 else f"ended with status {status}"
        print(f"error: a worker process {how}; start again to resume", file=sys.stderr)
        sys.exit(3)
    except BaseException:
        for child in children.values():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(log: Path) -> None:
    """Initializes a worker: it ends on SIGTERM or when the program has gone, and leaves no half-written file."""

    def end(*_: object) -> None:
        remove_unfinished()
        os._exit(STOPPED)

    def watch() -> None:
        multiprocessing.parent_process().join()  # type: ignore[union-attr]
        end()

    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), 2)
    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=watch, daemon=True).start()
