"""An engine whose answers follow a law, for tests of turns and processes. Importing it loads no framework."""

import os
import signal
import time

from tf_transformer.inference.engine import Engine, Hypothesis, TranslationResult
from tf_transformer.utils.values import BadInput


class Law(Engine):
    """Returns the letters in reverse, behind the options. A text "bad" raises, "die" ends the process once."""

    batch_size, max_values, languages = 8, {"beam_size": 9}, ("de", "en")
    metadata = {"beam_size": 4}  # noqa: RUF012

    def __init__(self, seconds=0.0, parallel="threads"):
        self.seconds, self.parallel, self.batches = seconds, parallel, []
        self.calls = None if parallel else 1

    def __reduce__(self):
        return type(self), (self.seconds, self.parallel)

    def _replies(self, texts, request):
        self.batches.append(list(texts))
        time.sleep(self.seconds)
        if "bad" in texts:
            raise BadInput("bad: expected another text")
        for text in texts:
            if text.startswith("die "):
                marker = text.removeprefix("die ")
                if not os.path.exists(marker):
                    open(marker, "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
            yield TranslationResult(text, (Hypothesis(self.law(text, request), 0.0),), len(text), False)

    def law(self, text, request):
        return f"{request.n}{sorted({**request.options, **request.languages}.items())}{text[::-1]}"
