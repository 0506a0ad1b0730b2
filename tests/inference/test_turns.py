"""Turns of many callers: which share one, in which order, and who gets which error. Engines here compute a law."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from law import Law
from programs import ROOT, run_python

import tf_transformer as tt
from tf_transformer.inference import turns as module
from tf_transformer.inference.engine import AVERAGE
from tf_transformer.inference.turns import CallerLeft, InTurns, Processes, Turns, caller_left, pooled
from tf_transformer.utils.values import BadInput

TURN = AVERAGE * Law.batch_size  # bytes


def held(turns):
    """Occupies all workers. Returns a function that frees them, once as many parts wait."""
    free, begun = threading.Event(), [threading.Event() for _ in range(turns.workers)]
    for event in begun:
        threading.Thread(target=turns.take, args=(lambda event=event: (event.set(), free.wait()),), daemon=True).start()
    for event in begun:
        assert event.wait(9)

    def release(parts):
        deadline = time.monotonic() + 9
        while len(turns) < parts and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(turns) == parts
        free.set()

    return release


def together(calls, turns):
    """Runs functions on a thread each, which all wait before the first turn. Returns results and errors."""
    release = held(turns)
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = []
        for count, call in enumerate(calls, 1):
            futures.append(pool.submit(call))
            while len(turns) < count:  # in this order
                time.sleep(0.001)
        release(len(calls))
        return [future.exception() or future.result() for future in futures]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_text_gets_the_answer_that_it_gets_alone(workers):
    """Whatever others ask at the same time, with which options and languages."""
    draw, engine, turns = random.Random(7), Law(0.001), Turns(workers)
    served, alone = InTurns(engine, turns), Law()
    options = [{}, {"length_penalty": 1.5}, {"beam_size": 2, "target_language": "de"}, {"target_language": "en"}]
    calls = []
    for _ in range(120):
        texts = [
            "".join(draw.choices("abc ", k=draw.choice((0, 3, 9, 90, 900)))) for _ in range(draw.choice((1, 1, 12)))
        ]
        calls.append((texts, draw.choice((None, None, 2)), draw.choice(options)))
    with ThreadPoolExecutor(40) as pool:
        results = list(pool.map(lambda call: served.replies(call[0], call[1], **call[2]), calls))
    assert results == [alone.replies(texts, n, **chosen) for texts, n, chosen in calls]
    assert sum(map(len, engine.batches)) == sum(len(texts) for texts, *_ in calls)
    for batch in engine.batches:
        assert (len(batch) <= 8 and len(batch) * max(map(len, batch)) <= TURN) or len(batch) == 1
    assert len(engine.batches) < sum(len(texts) for texts, *_ in calls), "some have shared a turn"


def test_who_shares_a_turn():
    """Those of the same options, in the order of arrival, up to a size. A short text does not wait for a long one."""
    engine, turns = Law(), Turns()
    served = InTurns(engine, turns)
    short, long = [f"text {i}" for i in range(11)], "x" * (TURN // 3)
    ask = lambda text, **options: lambda: served([text], **options)  # noqa: E731
    calls = [
        ask(short[0]),
        ask("other", length_penalty=2),
        ask(long),
        *map(ask, short[1:]),
        ask(long),
        ask("other 2", length_penalty=2),
    ]
    together(calls, turns)
    assert engine.batches == [short[:8], ["other", "other 2"], [long, long], short[8:]]


def test_engines_that_gain_nothing_share_no_turns():
    engine, turns = Law(), Turns()
    engine.joins = False
    together([lambda text=text: InTurns(engine, turns)([text]) for text in "abc"], turns)
    assert engine.batches == [["a"], ["b"], ["c"]]


def test_workers_divide_what_waits():
    engine, turns = Law(0.01), Turns(3)
    served = InTurns(engine, turns)
    together([lambda i=i: served([f"{i}"]) for i in range(7)], turns)
    assert max(map(len, engine.batches)) == 3 and sum(map(len, engine.batches)) == 7


@pytest.mark.parametrize("bad", [BadInput, ValueError])
def test_an_error_is_that_of_its_caller(bad):
    engine, turns = Law(), Turns()
    served = InTurns(engine, turns)
    if bad is ValueError:  # fewer values than rows
        whole = engine._replies
        engine._replies = lambda texts, request: list(whole(["x" if t == "bad" else t for t in texts], request))[
            : -("bad" in texts) or None
        ]
    texts = ["a", "bad", "b", "c"]
    results = together([lambda text=text: served([text]) for text in texts], turns)
    assert isinstance(results[1], bad)
    assert [result for result in results if result is not results[1]] == [Law()([text]) for text in ("a", "b", "c")]
    assert engine.batches[0] == (texts if bad is BadInput else ["a", "x", "b", "c"]), "they should have shared a turn"
    assert served(["d"]) == Law()(["d"])


def test_callers_that_leave_or_fail_leave_nothing_behind():
    engine, turns, gone = Law(0.03), Turns(), threading.Event()
    served = InTurns(engine, turns, at_once=9)

    def leaves():
        caller_left.set(gone.is_set)
        return served(["left"])

    gone.set()
    results = together([leaves, lambda: served(["a"])], turns)
    assert isinstance(results[0], CallerLeft) and results[1] == Law()(["a"])
    assert all("left" not in batch for batch in engine.batches)
    engine.batches.clear()
    with pytest.raises(BadInput, match="bad"):  # in the first of nine turns
        served(["bad", *(f"{i}" * TURN for i in range(8))])
    assert served(["z"]) == Law()(["z"]) and len(turns) == 0
    assert len(engine.batches) < 5, "the other turns should be dropped"


def test_workers_run_at_the_same_time_and_a_call_leaves_one_to_others():
    both = threading.Barrier(2, timeout=9)
    turns = Turns(2)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: turns.take(both.wait), range(2)))
    running, most, lock = [0], [0], threading.Lock()

    def slow(rows):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.005)
        with lock:
            running[0] -= 1
        return rows

    long = [32 * AVERAGE] * 20
    assert turns.map(slow, list(range(20)), long) == list(range(20)) and most == [1]
    assert turns.map(slow, list(range(20)), long, at_once=2) == list(range(20)) and most == [2]


def test_short_calls_have_a_worker_however_many_long_ones_there_are():
    """And long ones run as long as there are some, on the others."""
    turns, free, lock, running = Turns(3, spare=1), threading.Event(), threading.Lock(), []

    def long(rows):
        with lock:
            running.append(rows[0])
        free.wait(9)
        return rows

    with ThreadPoolExecutor(4) as pool:
        rows = [[10 * call + i for i in range(3)] for call in range(4)]
        futures = [pool.submit(turns.map, long, each, [0] * 3, 1) for each in rows]
        while len(running) < 2 or len(turns) < 2:
            time.sleep(0.001)
        assert [turns.take(lambda i=i: i) for i in range(9)] == list(range(9))
        short = lambda rows: rows  # noqa: E731
        assert turns.map(short, ["a", "b"], [1, 1], key="same") == ["a", "b"]
        assert len(running) == 2 and len(turns) == 2
        free.set()
        assert [future.result(9) for future in futures] == rows and len(running) == 12
    assert turns.map(short, list(range(9)), [0] * 9, 1) == list(range(9)), "all is as before"


def test_a_turn_of_short_calls_has_no_part_of_a_long_one_beyond_the_others():
    turns, seen = Turns(2, spare=1), []
    begun, spare, others = threading.Event(), threading.Event(), threading.Event()

    def run(rows):
        seen.append(rows)
        if rows == ["first"]:
            others.wait(9)
        return rows

    with ThreadPoolExecutor(6) as pool:

        def submit(waiting, function, *arguments):
            future = pool.submit(function, *arguments)
            while len(turns) != waiting or not seen:
                time.sleep(0.001)
            return future

        of_two = [0, TURN], 8, "same"  # sizes of the rows of two turns
        calls = [submit(0, turns.map, run, ["first", "second"], *of_two)]
        calls.append(pool.submit(turns.take, lambda: (begun.set(), spare.wait(9))))
        assert begun.wait(9)
        rows = [["a"], ["third", "fourth"], ["b"], ["c"]]
        for waiting, some in enumerate(rows, 1):
            calls.append(submit(waiting, turns.map, run, some, *(of_two if len(some) > 1 else ([0], 8, "same"))))
        spare.set()
        assert [calls[i].result(9) for i in (2, 4, 5)] == [["a"], ["b"], ["c"]]
        assert seen == [["first"], ["a", "b"], ["c"]]
        others.set()
        assert [calls[i].result(9) for i in (0, 3)] == [["first", "second"], ["third", "fourth"]]


def test_no_request_waits_forever_behind_those_that_share():
    """The turn of a request comes after at most those that were before it."""
    engine, turns = Law(), Turns()
    served = InTurns(engine, turns)
    calls = [lambda i=i: served([f"{i}"], **({"length_penalty": 3} if i == 5 else {})) for i in range(40)]
    together(calls, turns)
    assert engine.batches.index(["5"]) == 1


@pytest.fixture(scope="module")
def processes():
    return Processes(Law(parallel="processes"), 2)


def test_processes_answer_like_their_engine(processes):
    texts = ["a", "bcd", "", "e" * 99]
    assert processes.options == Law().options and processes.call_options == Law().call_options
    assert processes(texts, length_penalty=2) == Law()(texts, length_penalty=2)
    with pytest.raises(BadInput, match="bad: expected another text"):
        processes(["bad"])
    with pytest.raises(RuntimeError, match="AttributeError: 'int'"):
        processes._in_turn("_replies", [7], None)
    served = InTurns(processes, Turns(2))
    with ThreadPoolExecutor(9) as pool:
        assert list(pool.map(lambda i: served([f"{i}"]), range(60))) == [Law()([f"{i}"]) for i in range(60)]


def test_a_process_that_dies_is_started_again(processes, tmp_path):
    texts = [f"die {tmp_path / 'once'}"]
    assert processes(texts) == Law()(texts) and (tmp_path / "once").exists()
    assert [processes(["a"]) for _ in range(4)] == [Law()(["a"])] * 4


ORPHANS = """
import os, subprocess, sys
sys.path[:0] = ["tests"]
from law import Law
from tf_transformer.inference.turns import Processes
processes = Processes(Law(parallel="processes"), 1)
print(processes._idle.get()._process.pid, flush=True)
os._exit(9)  # without any clean-up, as if it was killed
"""


def test_processes_end_with_the_one_that_started_them():
    done = subprocess.run([sys.executable, "-c", ORPHANS], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 9, done.stderr
    deadline = time.monotonic() + 9
    while os.path.exists(f"/proc/{done.stdout.strip()}") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{done.stdout.strip()}")


def test_a_pool_has_as_many_workers_as_asked_for_or_cores(monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 5)
    monkeypatch.setattr(module, "Processes", lambda engine, count: (engine, count))
    for parallel, workers, expected in [("threads", None, 5), ("threads", 2, 2), (None, None, 1), ("processes", 1, 1)]:
        engine = Law(parallel=parallel)
        assert pooled(engine, workers) == (engine, expected)
    engine = Law(parallel="processes")
    assert pooled(engine) == ((engine, 5), 5)
    with pytest.raises(BadInput, match="workers: expected 1, since Law takes one call at a time, got 2"):
        pooled(Law(parallel=None), 2)


LIGHT = """
import json, sys
from trainers.command import engine
from tf_transformer.extensions.server import app as server
from tf_transformer.extensions.server.model import ServedModel

model = ServedModel(sys.argv[1], workers=2, opened=lambda path: engine(path, {}))
flask = server.app(model, {"source_language": "en", "target_language": "de"})
server.warm_up(flask, model)
client = flask.test_client()
texts = json.loads(sys.argv[2])
ask = lambda text: client.post("/translate", json={"q": text, "alternatives": 1}).get_json()
replies = [ask(text)["translatedText"] for text in texts]
assert client.get("/").status_code == client.get("/languages").status_code == 200
assert client.post("/document", json={"text": "Two doors."}).status_code == 200
heavy = {"tensorflow", "keras", "jax", "torch", "google.protobuf"} & sys.modules.keys()
assert not heavy, heavy
print(json.dumps([str(model), replies]))
"""


def test_an_export_for_litert_is_served_without_tensorflow(lite):
    pytest.importorskip("ai_edge_litert")
    texts = ["The old woman opens the red door.", "Two doors."]
    described, replies = json.loads(run_python(LIGHT, lite, json.dumps(texts)))
    assert replies == tt.load(lite)(texts)
    assert described == "engine LiteRT, 2 workers, at most 1 sentence per batch"
