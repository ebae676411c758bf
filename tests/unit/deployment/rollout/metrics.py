"""A server's metrics without a server: what the coordinator exports, in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from trtspec.serving.metrics import counters, gauges, histograms
from trtspec.serving.stats import Stats


def text_of(stats: Stats, seconds: float, model: str = "pair", started: float = 1.0) -> str:
    """As Triton writes it, whose custom metrics have the labels of the model first."""
    lines = []
    for sample in (*gauges(stats, started), *counters(stats, seconds), *histograms(stats)):
        labels = {"model": model, "version": "1", **sample.labels}
        pairs = ",".join(f'{key}="{value}"' for key, value in labels.items())
        lines.append(f"{sample.name}{{{pairs}}} {sample.value}")
    return "\n".join(lines) + "\n"


@contextmanager
def told(text: Callable[[], str]) -> Iterator[str]:
    """The URL of a port that tells such metrics."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
