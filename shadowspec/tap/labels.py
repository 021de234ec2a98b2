"""The labels of one request: what the classifier, its parameters and the operator's own metadata say of it."""

from __future__ import annotations

import re

from shadowspec import slicing
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.parsed import ParsedRequest
from shadowspec.tap.records import MirroredRecord
from shadowspec.types import SamplingRegime

TENANT_HASH_CHARACTERS = 16  # 64 bits of the tenant's hash: enough to tell tenants apart, short enough to read
INVALID_LABEL = "invalid"  # what stands for a value that could not be part of a slice's name
_LABEL_VALUE = re.compile(r"[A-Za-z0-9_.:/+-]{1,64}")


def prompt_class(record: MirroredRecord, request: ParsedRequest) -> str:
    """The class of a request: what the record says of it, else the classifier's."""
    declared = record.annotations.get("prompt_class")
    return slicing.prompt_class(
        request.texts,
        declared=declared if isinstance(declared, str) else None,
        offers_tools=request.offers_tools,
        asks_for_json=request.asks_for_json,
    )


def common_labels(class_name: str, regime: SamplingRegime, context_bucket: str) -> dict[str, str]:
    """The labels that every request has."""
    return {"prompt_class": class_name, "sampling_regime": regime.value, "context_bucket": context_bucket}


def own_labels(record: MirroredRecord, rule: EndpointRule, tenant_hash: str | None) -> dict[str, str]:
    """The labels that only some requests have: the tenant, and the endpoint's configured ones.

    A value is kept if it is a short word (letters, digits, _ . : / + -, at most 64), so that no text gets
    into a label; any other is "invalid".
    """
    labels = {} if tenant_hash is None else {"tenant": tenant_hash[:TENANT_HASH_CHARACTERS]}
    for name in rule.labels:
        value = record.annotations.get(name)
        if value is not None:
            labels[name] = _label_value(value)
    return labels


def _label_value(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, (str, int)) else ""
    return text if _LABEL_VALUE.fullmatch(text) else INVALID_LABEL
