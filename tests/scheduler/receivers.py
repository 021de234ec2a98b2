"""Receivers on real sockets: a mail server and a web server that keep what they are sent, and misbehave when told."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from tests.services import free_port


@dataclass
class Mailbox:
    """What a mail server took.  `answers` are given one by one instead of taking a mail; `delay_s` before each 250."""

    port: int
    mails: list[EmailMessage] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    recipients: list[list[str]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    logins: list[tuple[str, str]] = field(default_factory=list)
    delay_s: float = 0.0

    async def handle_RCPT(self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any) -> str:  # noqa: N802
        if address in self.refused:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        if self.answers:
            return self.answers.pop(0)
        message = message_from_bytes(envelope.original_content or envelope.content, policy=policy.default)
        assert isinstance(message, EmailMessage)
        self.times.append(time.time())
        self.mails.append(message)
        self.recipients.append(list(envelope.rcpt_tos))
        time.sleep(self.delay_s)  # the server's only thread: a sender waits for its 250
        return "250 OK"

    def authenticate(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login.decode(), data.password.decode()))
        is_right = data.password == b"right"
        return AuthResult(success=is_right, handled=False)


@contextmanager
def mail_server(**settings: Any) -> Iterator[Mailbox]:
    """A mail server on this machine; `settings` are aiosmtpd's."""
    mailbox = Mailbox(free_port())
    if settings.pop("wants_login", False):
        settings |= {"authenticator": mailbox.authenticate, "auth_required": True}
    controller = Controller(mailbox, hostname="127.0.0.1", port=mailbox.port, **settings)
    controller.start()
    try:
        yield mailbox
    finally:
        controller.stop()


def certified(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context with a certificate of this machine, which is signed by itself; and the certificate."""
    key, certificate = folder / "server.key", folder / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate


@dataclass
class Hook:
    """What a web server was posted.  `answers` are status codes, given one by one; then 200."""

    port: int = 0
    posts: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)  # path, headers, body
    times: list[float] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    delay_s: float = 0.0


@contextmanager
def web_server(context: ssl.SSLContext | None = None) -> Iterator[Hook]:
    """A web server on this machine that takes posts of JSON."""
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = hook.answers.pop(0) if hook.answers else 200
            if status == 200:
                hook.times.append(time.time())
                hook.posts.append((self.path, dict(self.headers), json.loads(body)))
            time.sleep(hook.delay_s)
            self.send_response(status)
            if status in (301, 302, 303, 307, 308):
                self.send_header("Location", "/login")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def do_GET(self) -> None:  # a page for a login
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            """Nothing: what comes is kept."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Nothing: a sender may be killed."""

    server = Server(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    hook.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
