"""How the programs share work: among processes of this machine, or in a pipeline on a runner of Apache Beam."""

import concurrent.futures
import contextlib
import functools
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
STOPPED = 128 + signal.SIGTERM  # the status of a process that this program stopped


def add_pipeline_options(add: Callable[..., Any]) -> None:
    """Add the options of the runner; `add` is the parser's add_argument."""
    add("--workers", type=positive, metavar="N", help="processes on this machine (1)")
    what = "a runner of Apache Beam, e.g. FlinkRunner; its options follow -- (this machine, without one)"
    add("--runner", metavar="NAME", help=what)


def split_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line's own arguments, and those after --, which are Beam's."""
    argv = list(argv)
    place = argv.index("--") if "--" in argv else len(argv)
    return argv[:place], argv[place + 1 :]


def check_options(workers: int | None, runner: str | None, beams: Sequence[str]) -> None:
    """Check the options of the runner.

    Raises:
        BadInput: they do not go together.
    """
    if workers is not None and (workers < 1 or runner):
        expected = "none with --runner, which has an option of its own" if runner else "a positive number"
        raise BadInput(f"--workers: expected {expected}, got {workers}")
    if beams and not runner:
        raise BadInput("--: expected --runner before Beam's options")


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


def run_pipeline(runner: str, options: Sequence[str], build: Callable[[Any], object]) -> None:
    """Build a pipeline, and run it to its end.

    Args:
        runner: the name of one of Beam's.
        options: Beam's, as on a command line.
        build: adds transforms to the pipeline.

    Raises:
        BadInput: there is no such runner, or it has no such options.
    """
    load_beam()
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    try:
        pipeline = beam.Pipeline(runner, PipelineOptions(list(options)))
    except (ImportError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [""])[-1]
        raise BadInput(f"--runner: expected one of Beam's, with its options; {reason}") from error
    with pipeline:
        build(pipeline)


@contextlib.contextmanager
def processes(workers: int, log: Path, progress: Callable[[], str]) -> Iterator[Callable[..., list[Any]]]:
    """Processes of this machine, as a function like `map` that returns when all is done.

    Args:
        workers: how many; one is this process itself.
        log: a file for what they write to standard error.
        progress: a line for standard error every 30 seconds.

    Raises:
        Exception: what a worker raised.
        SystemExit: 3, after one line, if a worker was killed.
    """
    if workers == 1:
        yield functools.partial(_one_by_one, progress)
        return
    pool = concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (log,))
    children = dict[int | None, multiprocessing.process.BaseProcess]()

    def each(function: Callable[..., Any], *items: Sequence[Any]) -> list[Any]:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as workers begin: Ctrl-C is this process's business
        try:
            futures = [pool.submit(function, *item) for item in zip(*items, strict=True)]
        finally:
            signal.signal(signal.SIGINT, before)
        children.update((child.pid, child) for child in multiprocessing.active_children())
        left = set(futures)
        while left:
            done, left = concurrent.futures.wait(left, SECONDS, concurrent.futures.FIRST_EXCEPTION)
            for future in done:
                future.result()
            if left:
                print(progress(), file=sys.stderr, flush=True)
        return [future.result() for future in futures]

    try:
        yield each
    except BrokenProcessPool:  # which stops the other workers
        pool.shutdown()
        statuses = sorted((child.exitcode or 0 for child in children.values()), key=lambda status: status == STOPPED)
        status = next(filter(None, statuses), 1)
        number = status - 128 if status > 128 else -status
        how = f"was killed by signal {number}" if number > 0 else f"ended with status {status}"
        print(f"error: a worker process {how}; start again to go on", file=sys.stderr)
        sys.exit(3)
    except BaseException:
        for child in children.values():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _one_by_one(progress: Callable[[], str], function: Callable[..., Any], *items: Sequence[Any]) -> list[Any]:
    results, said = [], time.monotonic()
    for item in zip(*items, strict=True):
        results.append(function(*item))
        if time.monotonic() - said > SECONDS:
            print(progress(), file=sys.stderr, flush=True)
            said = time.monotonic()
    return results


def _begin(log: Path) -> None:
    """Begin a worker. It ends when the program says so, or when that has gone, and leaves no half-written file."""

    def end(*_: object) -> None:
        remove_unfinished()
        os._exit(STOPPED)

    def watch() -> None:
        parent = multiprocessing.parent_process()
        assert parent
        parent.join()
        end()

    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), 2)
    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=watch, daemon=True).start()
