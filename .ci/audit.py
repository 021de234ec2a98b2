"""Ask a vulnerability service about every pinned package: `audit.py [--require] [--accept ID]... [CONSTRAINTS]`.

pip-audit answers "No known vulnerabilities found" also where the service knew none of the packages, as behind a proxy
that serves packages only.  Here such an answer is an audit that did not run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
SERVICE_TIMEOUT_S = 15


@dataclass(frozen=True, slots=True)
class Audit:
    """What the service said: `vulnerable` has lines for people, `unknown` the packages that it does not know."""

    audited: int
    unknown: tuple[str, ...]
    vulnerable: tuple[str, ...]
    why_not: str = ""

    @property
    def has_run(self) -> bool:
        """The service knew at least one package."""
        return self.audited > 0

    def exit_code(self, *, is_required: bool) -> int:
        """1 for a vulnerability; where the audit is required, 2 unless the service knew every package."""
        if self.vulnerable:
            return 1
        return 2 if is_required and (not self.has_run or self.unknown) else 0

    def describe(self) -> str:
        """One line, or one and a line for each vulnerability."""
        if not self.has_run:
            return f"the audit DID NOT RUN: {self.why_not}; nothing is known about vulnerabilities"
        lines = [f"audit: {self.audited} packages, {len(self.vulnerable)} known vulnerabilities"]
        if self.unknown:
            lines.append(f"  NOT audited, because the service does not know them: {', '.join(self.unknown)}")
        return "\n".join(lines + [f"  {line}" for line in self.vulnerable])

    def document(self) -> dict[str, Any]:
        """The same for a machine."""
        return {
            "has_run": self.has_run,
            "why_not": self.why_not or None,
            "audited": self.audited,
            "unknown": list(self.unknown),
            "vulnerable": list(self.vulnerable),
        }


def audit(constraints: Path, accepted: Sequence[str] = ()) -> Audit:
    """Ask the service that pip-audit is set to (`PIP_AUDIT_VULNERABILITY_SERVICE`) about every pin."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "audit.json"
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(constraints), "--no-deps", "--disable-pip"]
        command += ["--format", "json", "--output", str(answer), "--progress-spinner", "off"]
        command += ["--timeout", str(SERVICE_TIMEOUT_S)]
        command += [word for each in accepted for word in ("--ignore-vuln", each)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not answer.exists() or not answer.read_text(encoding="utf-8").strip():
            return Audit(0, (), (), f"pip-audit got no answer ({_last_line(done.stderr)})")
        return read(json.loads(answer.read_text(encoding="utf-8")))


def read(answer: dict[str, Any]) -> Audit:
    """An audit from pip-audit's JSON."""
    packages = answer["dependencies"]
    unknown = tuple(each["name"] for each in packages if "skip_reason" in each)
    audited = len(packages) - len(unknown)
    vulnerable = tuple(
        f"{each['name']} {each['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'no version'}"
        for each in packages
        for found in each.get("vulns", [])
    )
    why_not = "" if audited else f"the vulnerability service knows none of the {len(packages)} packages"
    return Audit(audited, unknown, vulnerable, why_not)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1].strip()


def main() -> int:
    """Audit, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--require", action="store_true", help="exit 2 unless every package was audited")
    parser.add_argument("--accept", action="append", default=[], metavar="ID", help="a vulnerability to leave out")
    parser.add_argument("constraints", nargs="?", type=Path, default=CHECKOUT / "constraints.txt")
    arguments = parser.parse_args()
    found = audit(arguments.constraints, arguments.accept)
    print(found.describe())
    return found.exit_code(is_required=arguments.require)


if __name__ == "__main__":
    sys.exit(main())
