"""Serve an export, a run or a checkpoint by LibreTranslate's API, which many apps support: POST /translate, for text or
HTML of any length, GET /languages and GET /health. Languages are not detected.

It has neither API keys nor limits. If others can reach it, put a server in front that has both, or use TensorFlow
Serving.
"""

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tf_transformer.config import BadInput
from tf_transformer.extensions.documents.document import FORMATS
from tf_transformer.extensions.documents.marked import Marked, sentences_in
from tf_transformer.inference.engine import Engine
from tf_transformer.tokenizers.languages import LANGUAGES
from tf_transformer.utils.extras import import_extra
from tf_transformer.utils.terminal import quiet_stderr
from tf_transformer.utils.values import Natural, convert

from .command import add_call_options, engine, model_name, of_calls, options, positive, run_program

if TYPE_CHECKING:
    from flask import Flask

MOST_ALTERNATIVES = 8


def main(argv: list[str] | None = None) -> None:
    parser = options("serve", __doc__)
    add = parser.add_argument
    add("model", help="directory, such as savedmodels/demo/1, or a name on the Hugging Face Hub")
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 means all of this machine (127.0.0.1)")
    add("--port", type=int, default=5000, help="port to listen on; 0 means any free port (5000)")
    add("--name", type=model_name, metavar="NAME", help="the model's name in requests (the folder's NAME)")
    add("--batch-size", type=positive, metavar="N", help="sentences per batch (32)")
    add("--verbose", action="store_true", help="log each request")
    add_call_options(add)
    args = parser.parse_args(argv)
    if not 0 <= args.port < 65536:
        parser.error(f"--port: expected 0 to 65535, got {args.port}")
    with quiet_stderr():
        import_extra("flask", "serve", "a server")
        from werkzeug.serving import make_server
    # Bind the port first: a taken port should fail before the model loads.
    with socket.create_server((args.host, args.port)) as listening:
        model = engine(args.model, vars(args), **{"batch_size": args.batch_size or 32})
        served = with_page(app(model, of_calls(vars(args))), args.model, args.name)
        server = make_server(args.host, 0, served, threaded=True, fd=listening.fileno())
        if not args.verbose:
            logging.getLogger("werkzeug").setLevel(logging.ERROR)
        print(f"listening on http://{args.host}:{server.port}", flush=True)
        print("Ctrl-C stops it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


def with_page(translate: "Flask", folder: str, name: str | None) -> Callable[..., Any]:
    """Adds TensorFlow Serving's REST API and the page, if the folder is NAME/VERSION of an export."""
    from tf_transformer.extensions.server import predict
    from tf_transformer.extensions.server.model import ServedModel

    model = ServedModel(folder, name)
    model.warm_up()
    page = predict.app(model)

    def served(environ: dict[str, Any], start_response: Any) -> Any:
        path = environ["PATH_INFO"]
        chosen = page if path in ("/", "/document") or path.startswith("/v1/") else translate
        return chosen(environ, start_response)

    return served


def pair_of(model: Engine, options: Mapping[str, Any]) -> list[str]:
    """Returns the default source and target language of calls, from the options or the model."""
    pair = [str(options.get(name) or model.metadata.get(name) or "") for name in LANGUAGES]
    if not all(pair):
        known = " and ".join(filter(None, pair)) or "none"
        raise BadInput(f"expected --source-language and --target-language, which this model does not say; got {known}")
    return pair


def app(model: Engine, options: Mapping[str, Any] | None = None) -> "Flask":
    """Returns a WSGI application that serves the API. The options are those of the engine's calls."""
    if not model.translates:
        raise BadInput("serve: expected a translator, got a parser")
    from flask import Flask, Response, request

    options = dict(options or {})
    pair, alone, served = pair_of(model, options), threading.Lock(), Flask(__name__)
    search = {name: value for name, value in options.items() if name not in LANGUAGES}
    sources, targets = ([*model.languages] or [language] for language in pair)

    def answer(body: Any, status: int = 200) -> Response:
        text = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        return Response(text, status, content_type="application/json")

    @served.after_request
    def for_any_page(response: Response) -> Response:
        response.headers["Access-Control-Allow-Origin"] = "*"
        response.headers["Access-Control-Allow-Headers"] = "Content-Type"
        return response

    @served.errorhandler(Exception)
    def failed(error: Exception) -> Response:
        status = getattr(error, "code", None)
        if not isinstance(status, int) and not isinstance(error, BadInput | TypeError | ValueError):
            served.logger.exception("a request failed")
            return answer({"error": "internal error"}, 500)
        return answer({"error": str(error)}, status if isinstance(status, int) else 400)

    @served.get("/health")
    def health() -> Response:
        return answer({"status": "ok"})

    @served.get("/languages")
    def languages() -> Response:
        return answer([{"code": code, "name": code, "targets": targets} for code in sources])

    @served.post("/detect")
    def detect() -> Response:
        raise BadInput("detect: expected none, since this server does not detect languages; say the source")

    @served.post("/translate")
    def translate() -> Response:
        body = request.get_json(silent=True) if request.is_json else request.values.to_dict()
        if not isinstance(body, dict) or "q" not in body:
            raise BadInput("expected q, source and target, in JSON or in a form, got no q")
        texts, kind = body["q"], body.get("format") or "text"
        several = isinstance(texts, list)
        if not all(isinstance(text, str) for text in (texts if several else [texts])):
            raise BadInput("q: expected a text or a list of texts, got something else")
        if kind not in FORMATS:
            raise BadInput(f"format: expected one of {', '.join(FORMATS)}, got {kind}")
        options = search | languages_of(body)
        number = body.get("alternatives") or 0
        number = int(number) if isinstance(number, str) and number.isdecimal() else number  # forms have strings
        count = min(convert("alternatives", number, Natural), MOST_ALTERNATIVES)
        with alone:
            outputs = model.document(texts, kind, **options)
            reply: dict[str, Any] = {"translatedText": outputs}
            if count:
                pairs = zip(texts, outputs, strict=True) if several else [(texts, outputs)]
                others = [alternatives(*pair, count, options) if kind == "text" else [] for pair in pairs]
                reply["alternatives"] = others if several else others[0]
        return answer(reply)

    def languages_of(body: Mapping[str, Any]) -> dict[str, str]:
        languages = {}
        for name, known, default in zip(LANGUAGES, (sources, targets), pair, strict=True):
            side = name.partition("_")[0]
            language = body.get(side) or default
            if language == "auto" and len(known) == 1:
                language = known[0]
            if language not in known:
                raise BadInput(f"{side}: expected one of {', '.join(known)}, got {language}")
            languages[name] = language
        return languages if model.languages else {}

    def alternatives(text: str, output: str, count: int, options: Mapping[str, Any]) -> list[str]:
        """Returns further translations of a text that is one sentence, otherwise none."""
        if len(Marked(text).sentences(sentences_in(options.get("source_language", sources[0])))) != 1:
            return []
        beams, most = options.get("beam_size", model.options.get("beam_size", 1)), model.max_values
        if "beam_size" in model.call_options:
            beams = min(max(beams, count + 1), most.get("beam_size", MOST_ALTERNATIVES))
            options = {**options, "beam_size": int(beams)}
        (best,) = model.n_best([text], int(min(count + 1, beams, most.get("n_best", beams))), **options)
        return [each for each in dict.fromkeys(one.text for one in best) if each != output.strip()][:count]

    return served


if __name__ == "__main__":
    run_program(main)
