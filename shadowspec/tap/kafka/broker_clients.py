"""Clients of the brokers: how each is opened, and the meaning of a failure.

This module, `batches` and `membership` correct kafka-python's behaviour for each client and never for the process, but
for its log level.  A missing topic is never created: the library's option does not reach the request.  A refused login
ends the first contact at once, with its reason, instead of at its time-out.  Data that a broker sends just before it
hangs up is read.  A connection that cannot be encrypted in time is given up.  Sockets that could not connect, those
that a client holds when it closes, and the threads of a client that could not be opened are closed.  The library's
debug log, which prints requests and responses (logins and prompts), stays off.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar
from weakref import WeakSet

from kafka import KafkaConsumer, errors
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket, create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.util import WeakMethod

from shadowspec.errors import ConfigError, ServiceUnavailableError
from shadowspec.tap.kafka.batches import BoundedFetcher
from shadowspec.tap.kafka.kafka_settings import KafkaSecurity, KafkaSettings
from shadowspec.tap.kafka.membership import Coordinator

log = logging.getLogger(__name__)

METADATA_MAX_AGE_MS: Final = 5_000  # a recreated topic is noticed within this time even where nothing is fetched
RECONNECT_BACKOFF_MAX_MS: Final = 1_000  # one broker that is back is found within this time
TOPIC_TIMEOUT_S: Final = 5.0  # a topic that was just created may not be known to every broker yet
HANDSHAKE_TIMEOUT_S: Final = 10.0  # TCP and TLS together
REQUEST_TIMEOUT_MS: Final = 20_000  # of one request; a broker that hangs is given up after it

# Waiting does not help: an operator has to fix credentials, permissions, names or settings.
LASTING: Final = (
    errors.AuthorizationError,
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
    errors.InvalidTopicError,
    errors.InvalidGroupIdError,
    errors.InvalidSessionTimeoutError,
    errors.InconsistentGroupProtocolError,
    errors.GroupMaxSizeReachedError,
    errors.FencedInstanceIdError,
    errors.UnsupportedVersionError,
    errors.UnsupportedCodecError,
    errors.KafkaConfigurationError,
)
UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"  # as OpenSSL says it; waiting makes no certificate good

DIRECT: Final = "direct"  # scheme of a connection without a proxy

Opened = TypeVar("Opened")


class _Sockets(KafkaNetSocket):  # type: ignore[misc] # kafka-python has no types
    """Plain connections whose sockets are closed where they fail; chosen by its scheme, as a proxy would be."""

    SCHEMES = (DIRECT,)

    async def sock_connect(self, net: Any, sock: socket.socket, address: Any, timeout_at: float | None = None) -> Any:
        try:
            return await super().sock_connect(net, sock, address, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class _DataBeforeEnd:
    """Returns the received data before it reports that the connection has ended.

    Where both arrive at the same read, as on a busy machine after a refused login, the library drops the data.  The end
    is not lost: the next read finds it again.
    """

    def _sock_recv(self) -> tuple[bytes, Exception | None]:
        data, error = super()._sock_recv()  # type: ignore[misc]
        return data, None if data else error


class PlainTransport(_DataBeforeEnd, KafkaTCPTransport):  # type: ignore[misc] # kafka-python has no types
    """A connection that is not encrypted."""


class EncryptedTransport(_DataBeforeEnd, KafkaSSLTransport):  # type: ignore[misc] # kafka-python has no types
    """A connection under TLS."""


class _Manager(KafkaConnectionManager):  # type: ignore[misc] # kafka-python has no types
    """Connections that remember why the last one failed."""

    def __init__(self, net: Any, **settings: Any) -> None:
        self.last_error: Exception | None = None
        self._watched: WeakSet[Any] = WeakSet()
        self._transports: WeakSet[Any] = WeakSet()
        super().__init__(net, **settings)
        self.cluster.config["allow_auto_create_topics"] = False

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        """As the library does, but an encrypted connection that is not ready in time is closed."""
        if timeout_at is None:
            timeout_at = time.monotonic() + HANDSHAKE_TIMEOUT_S
        options = self.config["socket_options"]
        sock = await create_connection(
            self._net, node.host, node.port, options, proxy_url=f"{DIRECT}://", timeout_at=timeout_at
        )
        if self.ssl_enabled:
            transport = EncryptedTransport(self._net, sock, host=node.host, ssl_context=self.config["ssl_context"])
        else:
            transport = PlainTransport(self._net, sock, host=node.host)
        self._transports.add(transport)
        try:
            remaining_ms = max(1.0, (timeout_at - time.monotonic()) * 1000)
            await self.wait_for(self.call_soon(transport.handshake), remaining_ms)
        except Exception as error:
            transport.abort(error)
            raise errors.KafkaConnectionError(f"no encrypted connection: {error}") from error
        return transport

    def get_connection(self, node_id: Any, **options: Any) -> Any:
        if not self.bootstrapped and self.last_error is not None and is_lasting(self.last_error):
            raise self.last_error
        connection = super().get_connection(node_id, **options)
        if connection not in self._watched:
            self._watched.add(connection)
            connection.init_future.add_callback(self._forget)
            connection.init_future.add_errback(self._remember)
        return connection

    def close_transports(self) -> None:
        """Close every socket that is still open; the client's thread has ended."""
        for transport in list(self._transports):
            transport._close()  # noqa: SLF001  # `close` may wait for the thread that has ended

    def _forget(self, _: object) -> None:
        self.last_error = None

    def _remember(self, error: Exception) -> None:
        self.last_error = error


class _NetClient(KafkaNetClient):  # type: ignore[misc] # kafka-python has no types
    """A client that also closes the connections that its thread is still making."""

    def close(self, node_id: Any = None) -> None:
        if node_id is None:
            self._manager.close()
            self._net.stop()
            self._net.drain()  # sends the rest
            self._manager.close_transports()
        super().close(node_id)


class Client:
    """The library's client of a consumer or producer; the consumer or producer makes it, this object holds it."""

    def __init__(self) -> None:
        self._client: Any = None

    def __call__(self, **settings: Any) -> Any:
        net = NetworkSelector(**settings)
        self._client = _NetClient(net=net, manager=_Manager(net, **settings), **settings)
        return self._client

    @property
    def cluster(self) -> Any:
        """The brokers' last metadata of topics and themselves."""
        return self._client.cluster

    @property
    def is_connected(self) -> bool:
        """Whether a connection to any broker is open."""
        return any(self._client.connected(broker.node_id) for broker in self.cluster.brokers())

    @property
    def last_error(self) -> Exception | None:
        """Why the last connection failed; None since one succeeded."""
        error: Exception | None = None if self._client is None else self._client._manager.last_error  # noqa: SLF001
        return error

    def close(self) -> None:
        """End the threads of a client whose owner could not be made."""
        if self._client is not None:
            self._client.close()


class Consumer(KafkaConsumer):  # type: ignore[misc]
    """A consumer that reads every readable record within its limit, and keeps the group membership it has joined."""

    _coordinator: Any

    def __init__(self, *topics: str, max_record_bytes: int, **settings: Any) -> None:
        super().__init__(*topics, **settings)
        self._fetcher.__class__, self._fetcher.max_record_bytes = BoundedFetcher, max_record_bytes
        self._net.run(self._replace_coordinator)  # on the client's thread, which calls the coordinator's listener

    async def _replace_coordinator(self) -> None:
        """The library makes its coordinator itself; before a subscription it has done nothing."""
        self._cluster.remove_listener(WeakMethod(self._coordinator._handle_metadata_update))  # noqa: SLF001
        assignors = self.config["partition_assignment_strategy"]
        self._coordinator = Coordinator(
            self._client, self._subscription, metrics=self._metrics, assignors=assignors, **self.config
        )


def open_client(
    make: Callable[..., Opened], settings: KafkaSettings, name: str, **options: Any
) -> tuple[Opened, Client]:
    """Make a consumer, producer or administration client and wait for a broker's first answer.

    Raises:
        ServiceUnavailableError: no broker answers, or it refuses; the message names the brokers and says why.
        ConfigError: a file that is to be used cannot be.
    """
    # This module logs each failure once; the library repeats it on every attempt, about once a second.
    logging.getLogger("kafka").setLevel(logging.INFO if log.isEnabledFor(logging.DEBUG) else logging.CRITICAL)
    client = Client()
    try:
        opened = make(kafka_client=client, **_arguments(settings), client_id=name, **options)
    except errors.KafkaError as error:
        cause = client.last_error or error
        client.close()
        raise unavailable(settings, cause) from error
    return opened, client


def await_topics(client: Client, settings: KafkaSettings, topics: Sequence[str]) -> None:
    """Return once the brokers know every topic.

    Raises:
        ServiceUnavailableError: they do not know one, or it is not for us to see.
    """
    cluster = client.cluster
    deadline = time.monotonic() + TOPIC_TIMEOUT_S
    for topic in topics:
        cluster.add_topic(topic)
    while missing := [topic for topic in topics if cluster.partitions_for_topic(topic) is None]:
        if cluster.unauthorized_topics:
            raise unavailable(settings, errors.TopicAuthorizationFailedError(sorted(cluster.unauthorized_topics)))
        if time.monotonic() > deadline:
            raise ServiceUnavailableError(
                f"Kafka at {settings.brokers}: there is no topic {', '.join(missing)}; topics are never created here",
                is_retryable=False,
            )
        time.sleep(0.05)


def describe(settings: KafkaSettings) -> str:
    """Connect, look for every topic that is consumed or written, and describe the result.

    Raises:
        ServiceUnavailableError: no broker answers or it refuses, or a topic is missing.
        ConfigError: a configured file cannot be used.
    """
    topics = (*settings.consumed_topics, settings.dead_letter_topic)
    consumer, client = open_client(KafkaConsumer, settings, "shadowspec-doctor", group_id=None)
    try:
        await_topics(client, settings, topics)
        partitions = (f"{topic} ({len(client.cluster.partitions_for_topic(topic))})" for topic in topics)
        return f"reachable, topics (partitions): {', '.join(partitions)}"
    finally:
        consumer.close(autocommit=False)


def is_lasting(error: Exception) -> bool:
    """Whether waiting does not heal it."""
    return isinstance(error, LASTING) or UNTRUSTED in str(error)


def unavailable(settings: KafkaSettings, error: Exception) -> ServiceUnavailableError:
    """The user's message for a client's error.  Kafka's texts hold names and offsets, never a record."""
    words = str(error) or type(error).__name__
    if isinstance(error, errors.TopicAuthorizationFailedError) and error.args and not isinstance(error.args[0], str):
        words = f"{settings.security.username or 'this client'} may not use topic {', '.join(sorted(error.args[0]))}"
    elif isinstance(error, errors.GroupAuthorizationFailedError):
        words = f"{settings.security.username or 'this client'} may not use group {settings.group_id}"
    elif isinstance(error, errors.FencedInstanceIdError):
        words = f"another worker has joined the group as {settings.group_instance_id}"
    return ServiceUnavailableError(f"Kafka at {settings.brokers}: {words}", is_retryable=not is_lasting(error))


def _arguments(settings: KafkaSettings) -> dict[str, Any]:
    security = settings.security
    arguments: dict[str, Any] = {
        "bootstrap_servers": list(settings.bootstrap_servers),
        "bootstrap_timeout_ms": settings.connect_timeout_ms,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
        "metadata_max_age_ms": METADATA_MAX_AGE_MS,
        "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MAX_MS,
        "metrics_enabled": False,
        "security_protocol": security.protocol,
    }
    if security.is_encrypted:
        arguments["ssl_context"] = _tls(security)
    if security.is_sasl:
        arguments |= {
            "sasl_mechanism": security.mechanism,
            "sasl_plain_username": security.username,
            "sasl_plain_password": security.read_password(),
        }
    return arguments


def _tls(security: KafkaSecurity) -> ssl.SSLContext:
    """Who is trusted, and who we are.  The broker's name is checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    key = "ssl_ca_file"
    try:
        if security.ca_file is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(security.ca_file)
        if security.certificate_file is not None:
            key = "ssl_certificate_file, ssl_key_file"
            # Without a function to ask for it, OpenSSL would ask the terminal for an encrypted key's passphrase.
            context.load_cert_chain(security.certificate_file, security.key_file, password=lambda: "")
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"kafka.{key}: cannot be used ({error.strerror or error})") from error
    return context
