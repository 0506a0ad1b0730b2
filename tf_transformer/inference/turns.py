"""Runs the batches of many callers: in turns, together where they can share a batch, and on several workers.

It loads neither Keras nor TensorFlow.
"""

import contextlib
import functools
import itertools
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

from tf_transformer.inference.engine import AVERAGE, Engine, Request, TranslationResult, batches, cost, strings_in
from tf_transformer.inference.words import Aligned
from tf_transformer.utils.files import encoded
from tf_transformer.utils.values import BadInput, Count

ROWS = 32  # rows of a turn of average sentences
# The first words of a worker's program. A terminal sends Ctrl-C to all processes.
BEGIN = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)"
ENDED = EOFError, OSError, pickle.UnpicklingError  # raised if the other process has ended, the last in an answer
# Whether the caller of this thread no longer wants the results.
caller_left: ContextVar[Callable[[], bool]] = ContextVar("caller_left", default=lambda: False)


class CallerLeft(Exception):
    """The caller of a turn has left before it."""


class Part:
    """Rows of one caller, which run in one turn.

    Args:
        function: Returns a value for each row.
        rows: The rows.
        longest: Size of the longest row in bytes.
        most: Rows of a turn.
        key: Parts with equal keys can share a turn, by the function of any of them. `None` means none.
        several: Whether the call has other parts.
    """

    def __init__(
        self,
        function: Callable[[list[Any]], Iterable[Any]],
        rows: list[Any],
        longest: int,
        most: int,
        key: Hashable,
        several: bool = False,
    ) -> None:
        self.function, self.rows, self.longest, self.most, self.key = function, rows, longest, most, key
        self.several = several
        self.left, self.future, self.began = caller_left.get(), Future[list[Any]](), time.perf_counter()


class Turns:
    """Workers that run parts in the order in which they arrive, each on a thread.

    A worker takes the part that has waited longest, and the others that can share its turn. None waits for parts that
    may arrive later.

    Args:
        workers: Number of turns at the same time.
        spare: Number of workers that run only calls of one turn, so that these do not wait for long ones.
        average: Bytes of a row of a full turn. See `cost`.
        observe: Called with the rows of each turn, and the seconds that its oldest part has waited.
    """

    def __init__(
        self,
        workers: int = 1,
        spare: int = 0,
        average: int = AVERAGE,
        observe: Callable[[int, float], None] = lambda rows, seconds: None,
    ) -> None:
        self.workers, self.average, self.observe = workers, average, observe
        self._waiting, self._changed = deque[Part](), threading.Condition()
        # Turns of calls of several that may begin now.
        self._free = workers - spare
        for number in range(workers):
            threading.Thread(target=self._work, name=f"turns-{number}", daemon=True).start()

    def __len__(self) -> int:
        """Returns the number of parts that wait."""
        return len(self._waiting)

    def take(self, work: Callable[[], Any]) -> Any:
        """Returns the result of `work`, which shares its turn with nothing.

        Raises:
            CallerLeft: If the caller has left before.
        """
        return self._submitted(Part(lambda rows: [work()], [None], 0, 1, None)).result()[0]

    def map(
        self,
        function: Callable[[list[Any]], Iterable[Any]],
        rows: Sequence[Any],
        sizes: Sequence[int],
        most: int = ROWS,
        key: Hashable = None,
        at_once: int = 1,
        done: Callable[[int], None] = lambda count: None,
    ) -> list[Any]:
        """Returns the values of rows, in as many turns as their sizes in bytes need.

        Args:
            function: Returns a value for each row of a turn.
            rows: The rows.
            sizes: Their sizes in bytes.
            most: Rows of a turn of average size. See `cost`.
            key: Calls with equal keys can share turns. `None` means none.
            at_once: Number of turns of this call that may wait or run at the same time.
            done: Called with the number of rows after each turn.

        Raises:
            CallerLeft: If the caller has left before a turn.
        """
        values, taken = dict[int, Any](), deque[tuple[list[int], Future[list[Any]]]]()

        def finish() -> None:
            indices, future = taken[0]
            values.update(zip(indices, future.result(), strict=True))
            taken.popleft()
            done(len(indices))

        turns = list(batches(sizes, most, self._cost))
        try:
            for indices in turns:
                if len(taken) == at_once:
                    finish()
                longest = max(sizes[i] for i in indices)
                part = Part(function, [rows[i] for i in indices], longest, most, key, len(turns) > 1)
                taken.append((indices, self._submitted(part)))
            while taken:
                finish()
        finally:
            for _, future in taken:  # after an error
                future.cancel()
        return [values[i] for i in range(len(rows))]

    def _submitted(self, part: Part) -> Future[list[Any]]:
        with self._changed:
            self._waiting.append(part)
            self._changed.notify()
        return part.future

    def _work(self) -> None:
        while True:
            parts = self._next()
            if some := [part for part in parts if wanted(part)]:
                self.observe(sum(len(part.rows) for part in some), time.perf_counter() - some[0].began)
                run(some)
            with self._changed:
                self._free += any(part.several for part in parts)
                self._changed.notify()
            del parts, some  # An idle worker must not keep texts.

    def _next(self) -> list[Part]:
        """Waits for parts, and returns those of a turn."""
        with self._changed:
            self._changed.wait_for(self._possible)
            first, *others = self._possible()
            parts, rows, shortest, longest = [first], len(first.rows), first.longest, first.longest
            # The others get as much, so that all end at the same time.
            most = min(first.most, -(-sum(len(part.rows) for part in (first, *others)) // self.workers))
            for part in others if first.key is not None else ():
                count, low, high = rows + len(part.rows), min(shortest, part.longest), max(longest, part.longest)
                # A short text must not wait for a long one, which takes more steps.
                similar = high <= max(2 * low, self.average)
                if part.key == first.key and similar and count <= most and self._cost(count, high) <= first.most:
                    parts.append(part)
                    rows, shortest, longest = count, low, high
            for part in parts:
                self._waiting.remove(part)
            self._free -= any(part.several for part in parts)
        return parts

    def _cost(self, rows: int, longest: int) -> int:
        return cost(rows, longest, self.average)

    def _possible(self) -> list[Part]:
        """Returns the parts that may run now."""
        return [part for part in self._waiting if self._free > 0 or not part.several]


def wanted(part: Part) -> bool:
    """Marks the future of a part as running, unless its caller has left or cancelled it."""
    if not part.future.set_running_or_notify_cancel():
        return False
    if part.left():
        part.future.set_exception(CallerLeft())
        return False
    return True


def run(parts: list[Part]) -> None:
    """Runs the parts of a turn together. If that raises, each runs by itself, so that only the one at fault fails."""
    rows = [row for part in parts for row in part.rows]
    try:
        values = list(parts[0].function(rows))
        if len(values) != len(rows):
            raise ValueError(f"expected {len(rows)} values, got {len(values)}")
    except BaseException as error:  # A future that is never set would keep its caller forever.
        if len(parts) == 1:
            parts[0].future.set_exception(error)
        for part in parts if len(parts) > 1 else ():
            run([part])
        return
    remaining = iter(values)
    for part in parts:
        part.future.set_result(list(itertools.islice(remaining, len(part.rows))))


class InTurns(Engine):
    """An engine that takes a turn for each batch. Documents are parsed outside of the turns.

    Args:
        engine: The engine.
        turns: The turns. `engine` can be called by as many threads as they have workers.
        at_once: Number of turns of a call that may wait or run at the same time.
    """

    def __init__(self, engine: Engine, turns: Turns, at_once: int = 1) -> None:
        self.engine, self.turns, self.at_once = engine, turns, at_once
        self.translates, self.aligns, self.batch_size = engine.translates, engine.aligns, engine.batch_size
        self.call_options, self.max_values, self.languages = engine.call_options, engine.max_values, engine.languages
        self.joins = engine.joins
        self._options = engine.options  # It takes a millisecond.

    metadata = property(lambda self: self.engine.metadata)
    options = property(lambda self: self._options)

    def request(self, n: Count | None, options: Mapping[str, Any]) -> Request:
        return self.engine.request(n, options)

    def replies(self, texts: Iterable[str | bytes], n: Count | None = None, **options: Any) -> list[TranslationResult]:
        # Engine's would draw each request's progress on the server's terminal.
        return self._in_batches(self._replies, list(strings_in(texts)), self.request(n, options))

    def _in_batches(self, function: Any, texts: list[str | bytes], request: Request, *progress: Any) -> list[Any]:
        """Like an engine's, in batches that are bounded in bytes as well, `at_once` of them in turns."""
        name = function.__name__
        key = (name, request.n, *(tuple(sorted(chosen.items())) for chosen in (request.options, request.languages)))
        called = functools.partial(getattr(self.engine, name), request=request)
        sizes = [len(encoded(text)) for text in texts]
        shared = key if self.joins else None
        return self.turns.map(called, texts, sizes, self.batch_size, shared, self.at_once, *progress)

    def _replies(self, texts: list[str | bytes], request: Request) -> Iterable[TranslationResult]:
        return self._in_batches(self._replies, texts, request)

    def _aligned(self, texts: list[str | bytes], request: Request) -> Iterable[Aligned]:
        return self._in_batches(self._aligned, texts, request)


class Processes(Engine):
    """An engine in several processes, for one that holds Python's lock while it runs.

    A call runs in the process that is free. A process that has died is started again, and its call runs once more.

    Args:
        engine: The engine. Each process opens its files again, so this one may be deleted.
        workers: Number of processes.
    """

    def __init__(self, engine: Engine, workers: int) -> None:
        self._metadata, self._own = engine.metadata, engine._own
        self.translates, self.aligns, self.batch_size = engine.translates, engine.aligns, engine.batch_size
        self.call_options, self.max_values, self.languages = engine.call_options, engine.max_values, engine.languages
        self.joins = engine.joins
        self._idle = queue.SimpleQueue[Worker]()
        pickled = pickle.dumps(engine)
        for worker in [Worker(pickled) for _ in range(workers)]:  # They start at the same time.
            worker.wait()
            self._idle.put(worker)

    metadata = property(lambda self: self._metadata)

    def _replies(self, texts: list[str | bytes], request: Request) -> list[TranslationResult]:
        return self._in_turn("_replies", texts, request)

    def _aligned(self, texts: list[str | bytes], request: Request) -> list[Aligned]:
        return self._in_turn("_aligned", texts, request)

    def _in_turn(self, *call: Any) -> list[Any]:
        worker = self._idle.get()
        try:
            try:
                return worker.call(*call)
            except ENDED:  # It was killed, for example by the system when memory is short.
                worker = worker.again()
                return worker.call(*call)
        finally:
            self._idle.put(worker)


class Worker:
    """A process that has an engine, and answers calls of its methods.

    Args:
        engine: The engine, pickled.
    """

    def __init__(self, engine: bytes) -> None:
        # Not by `multiprocessing`, whose processes either run the main module again or are copies of this one, which
        # hang if it has threads.
        words = [sys.executable, "-c", f"{BEGIN}; sys.path[:] = {sys.path!r}; from {__name__} import answer; answer()"]
        self._engine = engine
        process: Any = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._process = process
        self._process.stdin.write(engine)
        self._process.stdin.flush()

    def wait(self) -> None:
        """Waits until the engine is open."""
        try:
            self._received()
        except ENDED as error:
            raise BadInput("workers: expected a process that opens the model, got one that ended") from error

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Returns the list of what a method of the engine returns, or raises its error, or one of `ENDED`."""
        pickle.dump((method, arguments), self._process.stdin)
        self._process.stdin.flush()
        return self._received()

    def again(self) -> "Worker":
        """Returns a new worker for one that has died."""
        self._process.kill()
        self._process.wait()
        worker = Worker(self._engine)
        worker.wait()
        return worker

    def _received(self) -> list[Any]:
        values, error = pickle.load(self._process.stdout)
        if error:
            raise error
        return list(values)


def answer() -> None:
    """Answers calls on standard input, until it closes, as it does when the other process ends in any way."""
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the runtime prints
    engines = list[Engine]()

    def opened() -> list[Any]:
        engines.append(pickle.load(calls))
        return []

    def send(values: Any) -> None:
        pickle.dump(values, answers)
        answers.flush()

    with contextlib.suppress(*ENDED):
        send(outcome(opened))
        while engines:
            method, arguments = pickle.load(calls)
            send(outcome(functools.partial(getattr(engines[0], method), *arguments)))
    os._exit(0)  # The runtime prints when a process ends.


def outcome(function: Callable[[], Iterable[Any]]) -> tuple[list[Any], Exception | None]:
    """Returns what a function returns, as a list, and what it raises."""
    try:
        return list(function()), None
    except BadInput as error:
        return [], error
    except Exception as error:  # It may be of a class that cannot be pickled.
        return [], RuntimeError(f"{type(error).__name__}: {error}")


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pooled(engine: Engine, workers: int | None = None) -> tuple[Engine, int]:
    """Returns an engine that several threads can call at the same time, and the number of these.

    Args:
        engine: The engine.
        workers: Their number. `None` means the engine's `calls`.

    Raises:
        BadInput: If the engine takes one call at a time, and `workers` is higher.
    """
    if engine.parallel is None and (workers or 1) > 1:
        kind = type(engine).__name__
        raise BadInput(f"workers: expected 1, since {kind} takes one call at a time, got {workers}. Export it.")
    count = workers or engine.calls or cores()
    return Processes(engine, count) if engine.parallel == "processes" and count > 1 else engine, count
