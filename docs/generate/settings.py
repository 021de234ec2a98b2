"""Every key of the configuration and the policy: types and defaults of their schemas, meanings of their templates."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from docs.generate.markdown import code, listing
from shadowspec.config.sections import FileSection
from shadowspec.config.template import config_template, policy_template
from shadowspec.gate.policy import GatePolicy
from shadowspec.rollout.rollout_policy import RolloutPolicy

# Tables of the file: heading, schema, and the tables of the template that show its keys.
TABLES = (
    ("", "FileSection", ("",)),
    ("[database]", "DatabaseSection", ("database",)),
    ("[privacy]", "PrivacySection", ("privacy",)),
    ("[endpoints.NAME]", "EndpointSection", ("endpoints.chat", "endpoints.served")),
    ("[[endpoints.NAME.candidates]]", "CandidateSection", ("endpoints.chat.candidates", "endpoints.served.candidates")),
    ("[endpoints.NAME.default_sampling]", "DefaultSamplingSection", ("endpoints.chat.default_sampling",)),
    ("[endpoints.NAME.servers]", "ServerSettings", ("endpoints.served.servers",)),
    ("[endpoints.NAME.live]", "LiveSettings", ("endpoints.chat.live",)),
    ("[endpoints.NAME.pools]", "Pools", ("endpoints.chat.pools",)),
    ("[kafka]", "KafkaSettings", ("kafka",)),
    ("[engine]", "EngineSettings", ("engine",)),
    ("[worker]", "WorkerSettings", ("worker",)),
    ("[dashboard]", "DashboardSettings", ("dashboard",)),
    ("[dashboard.roles]", "RoleSettings", ("dashboard.roles",)),
    ("[schedule]", "ScheduleSettings", ("schedule",)),
    ("[schedule.jobs.NAME]", "JobSettings", ("schedule.jobs.daily", "schedule.jobs.alerts", "schedule.jobs.apply")),
    ("[schedule.targets.NAME]", "WhatToExport", ("schedule.targets.routes",)),
    ('[schedule.targets.NAME], kind = "file"', "FileTarget", ("schedule.targets.routes",)),
    ('[schedule.targets.NAME], kind = "git"', "GitTarget", ("schedule.targets.repository",)),
    ('[schedule.targets.NAME], kind = "config_map"', "ConfigMapTarget", ("schedule.targets.servers",)),
    ('[schedule.targets.NAME], kind = "http"', "HttpTarget", ("schedule.targets.flags",)),
    ('[schedule.receivers.NAME], kind = "folder"', "FolderSettings", ("schedule.receivers.archive",)),
    ('[schedule.receivers.NAME], kind = "email"', "EmailSettings", ("schedule.receivers.team",)),
    ('[schedule.receivers.NAME], kind = "webhook"', "WebhookSettings", ("schedule.receivers.chat",)),
)
_HEADER = re.compile(r"(?:# )?\[{1,2}([A-Za-z_.]+)\]{1,2}")
_KEY = re.compile(r"(?:# )?([a-z_0-9]+) = (.+?)(?:\s+# (.*))?")
_MORE = re.compile(r"#\s{2,}#?\s*(.+)")
_TEXT = re.compile(r"# (.+)")


@dataclass
class Shown:
    """A table of a template: what is said above it, and of each key."""

    above: str = ""
    meanings: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)  # by key


def read_template(text: str) -> dict[str, Shown]:
    """What a template says of its tables and keys."""
    tables, name, key = {"": Shown()}, "", ""
    block: list[str] = []
    group = ""
    for line in text.splitlines():
        shown = tables[name]
        if found := _HEADER.fullmatch(line):
            name, key, group = found[1], "", ""
            tables.setdefault(name, Shown(" ".join(block)))
            block = []
        elif found := _KEY.fullmatch(line):
            key = found[1]
            meaning = " ".join((*block, found[3] or "")).strip()
            if not shown.meanings.get(key):
                shown.meanings[key] = meaning
                shown.groups[key] = group
            block = []
        elif key and not block and (found := _MORE.fullmatch(line)):
            shown.meanings[key] += " " + found[1]
        elif found := _TEXT.fullmatch(line):
            block.append(found[1])
            group = found[1]
        else:
            block, key = [], ""
    return tables


def configuration() -> str:
    """Every table of the configuration file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a default that is no JSON is left out: `_default` says which
        schema = FileSection.model_json_schema()
    kinds: Mapping[str, Any] = {**schema["$defs"], "FileSection": schema}
    shown = read_template(config_template())
    parts = []
    for heading, kind, templates in TABLES:
        meanings: dict[str, str] = {}
        for each in templates:
            meanings |= {key: text for key, text in shown[each].meanings.items() if not meanings.get(key)}
        rows = []
        for key, item, required in _keys(kinds[kind], kinds):
            if not _is_table(item):
                meaning = _sentence(meanings.get(key) or item.get("description", ""))
                rows.append((code(key), _value(key, item, kinds, key in required), meaning))
        parts.append(f"### {code(heading) if heading else 'Before all tables'}\n\n")
        if above := shown[templates[0]].above:
            parts.append(_sentence(above) + "\n\n")
        parts.append(listing(rows) + "\n")
    return "".join(parts)


def policy() -> str:
    """Every key of the policy file, by the groups of its template."""
    defaults = {"default": asdict(GatePolicy()), "default.rollout": asdict(RolloutPolicy())}
    shown = read_template(policy_template())
    parts = []
    for name, keys in defaults.items():
        groups: dict[str, list[tuple[str, str, str]]] = {}
        for key, meaning in shown[name].meanings.items():
            row = (code(key), _toml(keys[key]), _sentence(meaning.removeprefix(shown[name].groups[key]).strip()))
            groups.setdefault(shown[name].groups[key], []).append(row)
        for group, rows in groups.items():
            parts.append(f"### {group or 'Rollout: `[default.rollout]`'}\n\n")
            parts.append(listing(rows) + "\n")
    return "".join(parts)


def _keys(kind: Mapping[str, Any], kinds: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], set[str]]]:
    """Its keys, those of its parts among them, with the keys that are required beside them."""
    required = set(kind.get("required", ()))
    for key, item in kind.get("properties", {}).items():
        if not key.startswith("("):
            yield key, item, required
        elif "$ref" in item and (part := item["$ref"].rpartition("/")[2]) not in {kind for _, kind, _ in TABLES}:
            yield from _keys(kinds[part], kinds)


def _is_table(item: Mapping[str, Any]) -> bool:
    """Whether the page has a table for it."""
    named = {kind for _, kind, _ in TABLES}
    options = [item, *item.get("anyOf", ())]
    options += [each["items"] for each in options if "items" in each]
    found = {each["$ref"].rpartition("/")[2] for each in options if "$ref" in each}
    return bool(found & named) or "patternProperties" in item


def _value(key: str, item: Mapping[str, Any], kinds: Mapping[str, Any], is_required: bool) -> str:
    """The default, which shows the type, with the other values that are possible; without a default, the type."""
    kind = _type(item, kinds)
    if is_required:
        return f"{kind}, required"
    default = _default(key, item)
    if not default:
        return kind
    options = [option for option in re.findall(r"`\"[^`]+\"`", kind) if option != default]
    if options:
        return f"{default} or {', '.join(options)}"
    return f"{default}{',' * bool(limits := _range(item))}{limits}".replace(",,", ",")


def _type(item: Mapping[str, Any], kinds: Mapping[str, Any]) -> str:
    if "$ref" in item:
        kind = kinds[item["$ref"].rpartition("/")[2]]
        if "enum" in kind:
            return _type(kind, kinds)
        return "table: " + ", ".join(code(key) for key, _, _ in _keys(kind, kinds)) if "properties" in kind else "any"
    if "anyOf" in item:
        return " or ".join(_type(each, kinds) for each in item["anyOf"] if each.get("type") != "null")
    if "enum" in item or "const" in item:
        return ", ".join(code(json.dumps(each)) for each in item.get("enum", [item.get("const")]))
    match item.get("type"):
        case "array":
            return "list of " + _type(item.get("items", {}), kinds)
        case "integer":
            return "integer" + _range(item)
        case "number":
            return "number" + _range(item)
        case "boolean":
            return "`true` or `false`"
        case "object":
            return "table"
        case "string":
            return "text"
    return "path" if item.get("format") == "path" or not item.get("type") else str(item["type"])


def _range(item: Mapping[str, Any]) -> str:
    low, above = item.get("minimum"), item.get("exclusiveMinimum")
    high, below = item.get("maximum"), item.get("exclusiveMaximum")
    if below is not None and below > 2**30:  # of the machine, not of the thing
        below = None
    if low is not None and high is not None:
        return f" {low:g}\N{EN DASH}{high:g}" if low >= 0 else f" {low:g} to {high:g}"
    least = f" \N{GREATER-THAN OR EQUAL TO}{low:g}" if low is not None else f" >{above:g}" if above is not None else ""
    most = f" \N{LESS-THAN OR EQUAL TO}{high:g}" if high is not None else f" <{below:g}" if below is not None else ""
    return f"{least},{most}" if least and most else least + most


def _default(key: str, item: Mapping[str, Any]) -> str:
    if "default" not in item:
        return code('"UTC"') if key == "time_zone" else ""
    return _toml(item["default"]) if item["default"] is not None else ""


def _toml(value: Any) -> str:
    if value is None:
        return code('"none"')
    if isinstance(value, dict):
        inner = ", ".join(f"{key} = {json.dumps(item)}" for key, item in value.items())
        return code(f"{{ {inner} }}" if inner else "{}")
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return code("[" + ", ".join(_toml(each).strip("`") for each in value) + "]")
    return code(json.dumps(value))


def _sentence(text: str) -> str:
    """With references to other pages as links, without a default that the brackets show."""
    text = text.replace("default: ~, ", "default: ").replace("; default: ~", "")
    text = re.sub(r"docs/([a-z-]+)\.md(?:, ([A-Z][A-Za-z ]+))?", _link, text).replace("  ", " ")
    return text[:1].upper() + text[1:] if text[:1].islower() else text


def _link(found: re.Match[str]) -> str:
    anchor = "" if found[2] is None else "#" + found[2].lower().replace(" ", "-")
    return f"[{found[2] or found[1]}]({found[1]}.md{anchor})"
