"""Servers on this machine alone that logs are read from: an S3, and web servers that know ranges or do not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from moto.server import ThreadedMotoServer
from pyarrow import fs


@dataclass
class Web:
    """A web server with these files; paths in `statuses` are answered with that status."""

    has_ranges: bool
    files: dict[str, bytes] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str | None, str | None]] = field(default_factory=list)  # path, range, authorization
    cut_off: int | None = None  # bytes after which an answer breaks off
    port: int = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def add(self, path: str, content: bytes) -> str:
        self.files[f"/{path}"] = content
        return self.url(path)


@contextmanager
def web_server(*, has_ranges: bool) -> Iterator[Web]:
    web = Web(has_ranges)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            path = self.path.partition("?")[0]
            web.requests.append((self.path, asked, self.headers.get("Authorization")))
            content = web.files.get(path)
            status = web.statuses.get(path, 404 if content is None else 200)
            if content is None or status != 200:
                self._answer(status, b"<html>", {})
                return
            if asked is None or not web.has_ranges:
                self._answer(200, content, {})
                return
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
            assert found
            first, last = int(found[1]), min(int(found[2]), len(content) - 1)
            if first >= len(content):
                self._answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                return
            self._answer(206, content[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(content)}"})

        def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(content))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(content[: web.cut_off])
            except ConnectionError:  # a client that asked how long it is
                self.close_connection = True
            if web.cut_off is not None:
                self.close_connection = True

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web.port = server.server_port
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass(frozen=True)
class Bucket:
    """A bucket of an S3 of this machine."""

    port: int
    files: fs.S3FileSystem

    @property
    def query(self) -> str:
        return f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"

    def url(self, key: str) -> str:
        """The address of a key, as it is written in addresses."""
        return f"s3://bucket/{key}?{self.query}"

    def upload(self, key: str, content: bytes) -> None:
        with self.files.open_output_stream(f"bucket/{key}", compression=None) as stream:
            stream.write(content)


@contextmanager
def bucket() -> Iterator[Bucket]:
    """An empty bucket; credentials come from the environment."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        files = fs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{port}", scheme="http", region="us-east-1", allow_bucket_creation=True
        )
        files.create_dir("bucket")
        yield Bucket(port, files)
    finally:
        server.stop()
