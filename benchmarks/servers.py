"""Servers of one model, each a process of this machine that answers POST /translate as LibreTranslate does."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

HOST, START = "127.0.0.1", 600  # seconds until a server must answer
CTRANSLATE2, LIBRETRANSLATE = "ctranslate2", "libretranslate"
FILES = {"saved_model.pb": "savedmodel", "model.tflite": "litert", "model.onnx": "onnx", "model.bin": CTRANSLATE2}


def kind_of(export: str) -> str | None:
    """Returns the kind of an export's directory, or of an .argosmodel, or `None`."""
    if export.endswith(".argosmodel"):
        return LIBRETRANSLATE
    return next((kind for file, kind in FILES.items() if (Path(export) / file).is_file()), None)


class Server:
    """A server's process, and its clients.

    Args:
        export: Directory of an export, or an .argosmodel.
        languages: Source and target language.
        python: Python of LibreTranslate's environment.
        options: Options of `tf-transformer serve`.
        command: The command `tf-transformer`, of this environment or of one with another version.
        timeout: Seconds that a client waits for a response.
    """

    def __init__(
        self, export: str, languages: list[str], python: str, options: list[str], command: str, timeout: float
    ):
        self.kind = kind_of(export)
        self.body = dict(zip(("source", "target"), languages, strict=True))
        self.timeout, self.threads = timeout, threading.local()
        with socket.create_server((HOST, 0)) as listening:
            self.port = listening.getsockname()[1]
        here = Path(__file__).parent / "peers"
        if self.kind == CTRANSLATE2:
            words = [sys.executable, str(here / "ctranslate2_server.py"), export, str(self.port)]
        elif self.kind == LIBRETRANSLATE:
            words = [python, str(here / "libretranslate_server.py"), export, str(self.port)]
        else:
            pair = ["--source-language", languages[0], "--target-language", languages[1]]
            words = [command, "serve", export, "--port", str(self.port), *pair, *options]
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log)

    def wait(self) -> float:
        """Waits until the server answers, and returns the seconds that it took from now."""
        began = time.monotonic()
        while time.monotonic() < began + START:
            if self.process.poll() is not None:
                self.log.seek(0)
                raise OSError(f"the server of {self.kind} has ended: {self.log.read()[-2000:]}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection(HOST, self.port, timeout=2)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return time.monotonic() - began
            time.sleep(0.2)
        raise OSError(f"the server of {self.kind} did not answer in {START} s")

    def translate(self, texts: list[str]) -> list[str]:
        """Returns the translation of a text. Each thread keeps its connection open."""
        (text,) = texts
        connection = getattr(self.threads, "connection", None) or self.connected()
        try:
            connection.request("POST", "/translate", self.encoded(text), {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self.threads.connection = None
            raise OSError(type(error).__name__) from error
        if response.status != 200:
            raise OSError(f"status {response.status}")
        return [json.loads(content)["translatedText"]]

    def encoded(self, text: str) -> bytes:
        return json.dumps({"q": text, **self.body}).encode()

    def connected(self) -> http.client.HTTPConnection:
        self.threads.connection = http.client.HTTPConnection(HOST, self.port, timeout=self.timeout)
        return self.threads.connection

    def mib(self) -> float:
        """Returns the memory of the process and its children in MiB. Pages that they share count once."""
        return sum(map(proportional_mib, family(self.process.pid)))

    def cpu_seconds(self) -> float:
        """Returns the CPU time of the process and its children so far."""
        return sum(map(cpu_seconds, family(self.process.pid)))

    @contextlib.contextmanager
    def busy_with(self, documents: list[str]) -> Iterator[None]:
        """Sends these documents again and again, one client each, until the end. Their connections close then."""
        connections, end = [], threading.Event()

        def client(text: str) -> None:
            while not end.is_set():
                with contextlib.suppress(OSError, http.client.HTTPException, AttributeError):
                    connection = http.client.HTTPConnection(HOST, self.port, timeout=START)
                    connections.append(connection)
                    connection.request("POST", "/translate", self.encoded(text), {"Content-Type": "application/json"})
                    connection.getresponse().read()

        threads = [threading.Thread(target=client, args=(text,), daemon=True) for text in documents]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            end.set()
            for connection in connections:
                with contextlib.suppress(OSError, AttributeError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def family(pid: int) -> list[int]:
    """Returns a process and all that it has started."""
    children = list[str]()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # The thread may have ended.
            children += file.read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def proportional_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))
