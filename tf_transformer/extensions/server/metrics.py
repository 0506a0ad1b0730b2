"""What a server counts and measures, in Prometheus' text format: requests, the queue, batches and latencies."""

from collections.abc import Callable

from flask import Flask, Response, abort, request

from tf_transformer.inference.turns import Turns
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.values import BadInput

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128)


def add_metrics(flask: Flask, turns: Turns) -> Callable[[Response, float], None]:
    """Adds /metrics to an application. Returns a function that counts a response, and the seconds that it took.

    Without the package, the response of /metrics is how to install it.
    """
    try:
        prometheus = import_extra("prometheus_client", "serve", "GET /metrics")
    except BadInput as error:
        message = str(error)
        flask.add_url_rule("/metrics", "metrics", lambda: abort(404, message))
        return lambda response, seconds: None
    registry = prometheus.CollectorRegistry()
    requests = prometheus.Counter(
        "tf_transformer_requests", "Requests by address and status.", ("path", "status"), registry=registry
    )
    latency = prometheus.Histogram(
        "tf_transformer_request_seconds", "Time to answer a request.", ("path",), buckets=SECONDS, registry=registry
    )
    waited = prometheus.Histogram(
        "tf_transformer_queue_seconds", "Time that a batch waits.", buckets=SECONDS, registry=registry
    )
    size = prometheus.Histogram(
        "tf_transformer_batch_sentences", "Sentences per batch.", buckets=SENTENCES, registry=registry
    )
    queue = prometheus.Gauge("tf_transformer_queue_batches", "Batches that wait now.", registry=registry)
    queue.set_function(lambda: len(turns))
    workers = prometheus.Gauge("tf_transformer_workers", "Batches that run at the same time.", registry=registry)
    workers.set(turns.workers)

    def observe(rows: int, seconds: float) -> None:
        size.observe(rows)
        waited.observe(seconds)

    turns.observe = observe

    def count(response: Response, seconds: float) -> None:
        # Rules and not paths, of which a client can make up any number.
        path = request.url_rule.rule if request.url_rule else "other"
        requests.labels(path, str(response.status_code)).inc()
        latency.labels(path).observe(seconds)

    @flask.get("/metrics")
    def metrics() -> Response:
        return Response(prometheus.generate_latest(registry), content_type=prometheus.CONTENT_TYPE_LATEST)

    return count
