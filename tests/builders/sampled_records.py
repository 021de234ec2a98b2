"""Raw records and the admission that samples them."""

from __future__ import annotations

from shadowspec.tap.admission import Admission, SliceRate
from shadowspec.tap.endpoints import EndpointRule, MatchRule
from shadowspec.tap.hashing import KeyedHash
from tests.fakes import endpoint_rule
from tests.tap.mirror import SECRET, START, ByteTokenizer, chat

RULE = endpoint_rule(
    name="chat", served_models=("model-a",), match=MatchRule(endpoint="chat"), sample_rate=0.3, timed_positions=2
)


def admission(rule: EndpointRule = RULE, slice_rate: SliceRate | None = None) -> Admission:
    arguments = {} if slice_rate is None else {"slice_rate": slice_rate}
    return Admission([rule], {rule.name: ByteTokenizer()}, KeyedHash(SECRET), **arguments)


def record(session: int, turn: int = 0, **changes: object) -> dict[str, object]:
    fields = {"session_id": f"s{session}", "endpoint": "chat", "timestamp": START + turn, "response_id": None}
    return chat(**{**fields, **changes})
