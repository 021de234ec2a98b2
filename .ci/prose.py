"""Check the prose of the docs and of every message against `.vale/`, after showing that each of its rules fires."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
RULES, EXAMPLES, BUILD = ROOT / ".vale" / "ShadowSpec", ROOT / ".vale" / "examples", ROOT / "build" / "prose"
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
FEWEST_WORDS = 3  # shorter strings are names, keys and labels
# Data: words and patterns of other languages.
DATA = [f"shadowspec/tap/{name}.py" for name in ("language", "prompt_class_patterns")]
# Strings that a program reads, and no person.
CODE = re.compile(
    r"^\s*(?:<|SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|WITH|PRAGMA|SET |LOCK |\(\?|\(\s*NOT EXISTS)"
    r"|[{};]\s*$|\\[bsdw.]|</"
)
TOML_KEY = re.compile(r"^(?:# )?[a-z_]+ = .*# ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach of a rule."""

    path: str
    line: int
    rule: str
    message: str


def main() -> int:
    """Print the breaches in the places given (by default everything); exit 1 where there is one."""
    vale, *places = sys.argv[1:]
    show_that_rules_fire(vale)
    pages = places or [*PAGES, *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md")))]
    findings = lint(vale, [page for page in pages if page.endswith(".md")]) + lint_messages(vale, places)
    for finding in findings:
        print(f"{finding.path}:{finding.line}: {finding.rule}: {finding.message}")
    counts = Counter(finding.rule for finding in findings)
    print("prose:", ", ".join(f"{number} {rule}" for rule, number in counts.items()) or "no finding", file=sys.stderr)
    return bool(findings)


def show_that_rules_fire(vale: str) -> None:
    """Exit unless each rule fires once on each "Wrong" sentence, on none "Right", and each pattern is tried."""
    for rule in sorted(RULES.glob("*.yml")):
        page = EXAMPLES / f"{rule.stem}.md"
        wrong, _ = page.read_text(encoding="utf-8").split("## Right")
        lines = [number for number, line in enumerate(wrong.splitlines(), 1) if line.startswith("- ")]
        found = sorted(finding.line for finding in lint(vale, [str(page)]) if finding.rule == rule.stem)
        if found != lines:
            sys.exit(f"{page.relative_to(ROOT)}: {rule.stem} should fire on the lines {lines}, and fires on {found}")
        untried = [pattern for pattern in patterns(rule) if not re.search(pattern, wrong, re.IGNORECASE | re.MULTILINE)]
        if untried:
            sys.exit(f"{page.relative_to(ROOT)}: give an example of {untried[0]}")


def patterns(rule: Path) -> list[str]:
    """What a rule searches for, so that an example of each can be asked for."""
    content = yaml.safe_load(rule.read_text(encoding="utf-8"))
    return [re.sub(r"^\^", "^- ", pattern) for pattern in [*content.get("swap", {}), *content.get("tokens", [])]]


def lint(vale: str, paths: list[str]) -> list[Finding]:
    """Vale's errors in Markdown and HTML files."""
    if not paths:
        return []
    done = subprocess.run(  # noqa: S603  # the linter of this environment
        [vale, "--no-exit", "--minAlertLevel=error", "--output=JSON", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    alerts: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return [
        Finding(path, alert["Line"], alert["Check"].partition(".")[2], alert["Message"])
        for path, of_page in alerts.items()
        for alert in of_page
    ]


def lint_messages(vale: str, places: list[str]) -> list[Finding]:
    """Errors in the strings of the packages, at the lines of their source."""
    origins: dict[str, list[int]] = {}
    for source in sorted([*(ROOT / "shadowspec").rglob("*.py"), *(ROOT / "dashboards").rglob("*.py")]):
        name = str(source.relative_to(ROOT))
        if name in DATA or (places and name not in places):
            continue
        texts = list(messages(source))
        if texts:
            origins[write(f"{name}.md", "\n".join(f"- {text}" for _, text in texts))] = [line for line, _ in texts]
    findings = []
    for finding in lint(vale, list(origins)):
        lines = origins[finding.path]
        name = str(Path(finding.path).relative_to(BUILD.relative_to(ROOT)).with_suffix(""))
        line = lines[finding.line - 1] if lines else finding.line
        findings.append(Finding(name, line, finding.rule, finding.message))
    return findings


def write(name: str, text: str) -> str:
    """A file for Vale below build/, and its name."""
    path = BUILD / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="replace")
    return str(path.relative_to(ROOT))


def messages(source: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every paragraph that a user may read: strings of some words, and the help of commands."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    silent = set(docstrings(tree, helps="cli" in source.parts))
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "N" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (silent | parts):
            text = node.value
        else:
            continue
        if TOML_KEY.search(text):
            text = comments(text)
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\|))", text):
            words = " ".join(paragraph.split()).lstrip("-*# ")
            if len(words.split()) >= FEWEST_WORDS and not CODE.search(words):
                yield node.lineno, words.replace("<", "&lt;")


def comments(toml: str) -> str:
    """The comments of a configuration template, a paragraph for each key and for each comment above keys."""
    apart = re.sub(r"^((?:# )?[a-z_0-9]+ = .*)\n(?=# \S)", r"\1\n\n", toml, flags=re.MULTILINE)
    keyed = re.sub(r"^(?:# )?[a-z_0-9]+ = .*?(?:  ?# |$)", "\n\n", apart, flags=re.MULTILINE)
    lines = (re.sub(r"^#\s*(?:# )?", "", line) for line in keyed.splitlines())
    return "\n".join("" if line.startswith("[") else line for line in lines)


def docstrings(tree: ast.AST, *, helps: bool) -> Iterator[int]:
    """The identities of strings that only readers of the code see; a command's docstring is its help."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_help = helps and isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
            is_help = is_help and any("Option" in ast.dump(each) for each in node.args.args + node.args.kwonlyargs)
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and not is_help:
                yield id(first.value)


if __name__ == "__main__":
    sys.exit(main())
