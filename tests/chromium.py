"""A page in headless Chromium, asked in Chrome's DevTools Protocol by pipes, without a library of another project."""

import json
import os
import select
import shutil
import subprocess
import time

FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
FLAGS += " --disable-component-update --disable-sync --remote-debugging-pipe"
PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """A page at an address, in a browser with its own files in an empty folder."""

    def __init__(self, address, folder, width=390, height=844):
        asks, self._write = os.pipe()
        self._read, answers = os.pipe()
        # The browser reads from 3 and writes to 4.
        script = f'exec "$0" "$@" 3<&{asks} 4>&{answers}'
        flags = [*FLAGS.split(), f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank"]
        command = ["bash", "-c", script, PROGRAM, *flags]
        self._process = subprocess.Popen(command, pass_fds=(asks, answers), stderr=subprocess.DEVNULL)
        os.close(asks)
        os.close(answers)
        self._count, self._left, self._session = 0, b"", {}
        (target,) = (one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=address)

    def call(self, method, **parameters):
        """The result of a method of the protocol."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _next(self):
        while b"\0" not in self._left:
            assert select.select([self._read], [], [], 60)[0], "no answer in 60 seconds"
            self._left += os.read(self._read, 1 << 20)
        first, _, self._left = self._left.partition(b"\0")
        return json.loads(first)

    def value(self, expression):
        """What an expression in JavaScript gives, after it if it is a promise."""
        asked = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        found = self.call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression, seconds=60):
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f"not within {seconds} seconds: {expression}"
            time.sleep(0.02)

    def close(self):
        self._process.terminate()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
