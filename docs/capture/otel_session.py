"""The session on every event and span: `watch()` once at the start, then `with session("s-1"):` around calls.

Needs opentelemetry-processor-baggage.  Baggage also goes out in HTTP headers: use ids that may.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import _logs, baggage, context, trace
from opentelemetry.processor.baggage import BaggageLogProcessor, BaggageSpanProcessor

KEYS = ("session.id", "user.id")


def watch() -> None:
    """Copy these keys of the baggage to telemetry."""
    trace.get_tracer_provider().add_span_processor(BaggageSpanProcessor(KEYS.__contains__))
    _logs.get_logger_provider().add_log_record_processor(BaggageLogProcessor(KEYS.__contains__))


@contextmanager
def session(id: str) -> Iterator[None]:
    """Calls within belong to this session."""
    token = context.attach(baggage.set_baggage("session.id", id))
    try:
        yield
    finally:
        context.detach(token)
