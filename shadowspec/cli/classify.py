"""`shadowspec classify`: the slice of each request, from files or for a gateway over HTTP."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Annotated

import typer

from shadowspec.app.before_loading import load_tokenizers, require_inputs
from shadowspec.app.progress_bar import notes
from shadowspec.app.serve_classifier import DEFAULT_MAX_BODY_BYTES, ClassifierApp, listening_socket
from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption
from shadowspec.config import Config, find_config, load_config, load_hash_secret
from shadowspec.errors import ConfigError, UsageError
from shadowspec.gc_control import gc_relaxed
from shadowspec.tap.classifier import Classified, Classifier
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.sources import read_records
from shadowspec.types.extras import require_extra
from shadowspec.types.public_documents import PublicDocument, PublicValue, public, shows
from shadowspec.types.settings import LAST_PORT


@shows(Classified, "labels")
class ClassifiedRequest(PublicValue, frozen=True, kw_only=True):
    """The slice of the request in a line; without one the reason."""

    line: int
    tag: str | None


class ClassifyDocument(PublicDocument, frozen=True, kw_only=True):
    """The requests of `classify --json`."""

    requests: Sequence[ClassifiedRequest]


def classify(
    files: Annotated[
        list[str] | None, typer.Argument(help="Files with one request body a line; - is standard input.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Answer gateways over HTTP instead, until stopped."),
    ] = None,
    max_body_bytes: Annotated[
        int,
        typer.Option("--max-body-bytes", metavar="N", min=1, help="With --listen: a larger body has no slice."),
    ] = DEFAULT_MAX_BODY_BYTES,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Name the slice of requests as the tap does, for routes by slice.

    With --listen a gateway sends each request (body, path and headers) and gets the slice in headers, which the routes
    of `shadowspec export` match. Requests that the tap cannot measure have no slice. The service has no login: only the
    gateway may reach its address.
    """
    if bool(files) == (listen is not None):
        raise UsageError("give FILES, or --listen HOST:PORT, and not both")
    config = load_config(find_config(config_path))
    require_inputs(config, files or (), needs_weights=False)
    if listen is not None:
        _serve(config, listen, max_body_bytes)
        return
    classifier = _load(config)

    rows = [
        (raw.key.offset, classifier.classify(raw.value or b"")) for file in files or () for raw in read_records(file)
    ]
    if as_json:
        requests = [public(ClassifiedRequest, classified, line=line) for line, classified in rows]
        print_json(ClassifyDocument(requests=requests))
        return
    for line, classified in rows:
        place = classified.tag or f"no slice ({classified.reason})"
        results.print(f"{line}: {place}", highlight=False, markup=False, soft_wrap=True)


def _load(config: Config) -> Classifier:
    with notes.status("loading tokenizers"):
        tokenizers = load_tokenizers(config)
    rules = [endpoint.rule for endpoint in config.endpoints.values()]
    routing = None if config.kafka is None else config.kafka.routing
    return Classifier(rules, tokenizers, KeyedHash(load_hash_secret(config)), routing)


def _serve(config: Config, listen: str, max_body_bytes: int) -> None:
    """Answer until stopped.

    Raises:
        ConfigError: the address is none, is taken, or no server is installed.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > LAST_PORT:
        raise ConfigError(f"--listen {listen!r}: must be HOST:PORT, such as 127.0.0.1:9300")
    require_extra("--listen", "classify")
    from shadowspec.app.timed_http import make_server

    with listening_socket(host.strip("[]"), int(port)) as listener:
        app = ClassifierApp(_load(config), max_body_bytes=max_body_bytes)
        address, number = listener.getsockname()[:2]
        notes.print(f"classifying requests on http://{address}:{number}", highlight=False, markup=False)
        if not ip_address(address).is_loopback:
            notes.print(
                f"{address} is open to the network, and the service has no login: let only the gateway reach it",
                highlight=False, markup=False,
            )  # fmt: skip
        # The server raises the signal that stopped it again; SIGTERM is an ordinary end.
        signal.signal(signal.SIGTERM, lambda *_: None)
        with gc_relaxed():
            make_server(app).run(sockets=[listener])
