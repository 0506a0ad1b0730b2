"""CTranslate2 behind Flask and waitress, as an application would have it: one sentence per request.

    python -m benchmarks.peers.ctranslate2_server FOLDER PORT

FOLDER is an export for CTranslate2. It answers POST /translate like LibreTranslate.
"""

import sys
from pathlib import Path

import ctranslate2
import sentencepiece
from flask import Flask, request
from waitress import serve

WORKERS, THREADS = 2, 64  # concurrent batches of CTranslate2, and threads of waitress, as `tf-transformer serve` has


def main(folder: str, port: str) -> None:
    translator = ctranslate2.Translator(folder, inter_threads=WORKERS, intra_threads=1)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(Path(folder) / "tokenizer.model"))
    flask = Flask(__name__)
    flask.get("/health")(lambda: {"status": "ok"})

    @flask.post("/translate")
    def translate():
        tokens = pieces.encode(request.get_json()["q"], out_type=str)
        (result,) = translator.translate_batch([tokens], beam_size=4, length_penalty=0.6)
        return {"translatedText": pieces.decode(result.hypotheses[0])}

    serve(flask, host="127.0.0.1", port=int(port), threads=THREADS)


if __name__ == "__main__":
    main(*sys.argv[1:])
