"""docs/formats.md names every reason that the formats can give, and every sample of it is one."""

from __future__ import annotations

import re
from pathlib import Path

from shadowspec.tap.documents import MAX_RECORDS_PER_MESSAGE
from shadowspec.tap.formats import MessageFormat
from shadowspec.tap.joining import MAX_WAITING_BYTES, QUIET_WINDOWS
from shadowspec.tap.records import DISQUALIFYING_ANNOTATIONS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "formats.md").read_text()
SOURCES = sorted((ROOT / "shadowspec/tap").rglob("*.py"))
RAISED = re.compile(r'(?:malformed_error|unsupported_error|RecordError)\((?:FunnelCounter\.[A-Z]+, )?"([a-z_0-9:]+)"')


def test_every_reason_is_documented() -> None:
    reasons = {reason for path in SOURCES for reason in RAISED.findall(path.read_text())}
    assert len(reasons) > 15
    missing = [reason for reason in reasons | set(DISQUALIFYING_ANNOTATIONS) if f"`{reason}`" not in PAGE]
    assert missing == []


def test_every_format_and_limit_is_documented() -> None:
    for format in MessageFormat:
        assert f"`{format}`" in PAGE
    assert f"up to {MAX_RECORDS_PER_MESSAGE:,}" in PAGE
    assert f"{MAX_WAITING_BYTES // 1024 // 1024} MB of messages" in PAGE
    assert f"after {QUIET_WINDOWS} windows" in PAGE
