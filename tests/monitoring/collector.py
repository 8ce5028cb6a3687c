"""A collector of OpenTelemetry traces."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@contextmanager
def collector(code: int) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A collector that answers with a code: its URL, and the paths and bodies of requests that it got."""
    received: list[tuple[str, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, body))
            self.send_response(code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", received
        finally:
            server.shutdown()
            thread.join()


def spans_of(body: bytes) -> list[Any]:
    """The spans of a request."""
    resources = ExportTraceServiceRequest.FromString(body).resource_spans
    return [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
