"""Whether an output satisfies its contract: JSON (of a schema), a call of an offered tool, SQL, a grammar.

The check is that of the client's code: does the whole output parse in the required form?  It does not judge the
content.  Texts exist only in memory; the only result of this module is a `Validity`.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

import re2

from shadowspec.errors import ConfigError
from shadowspec.quality.custom_scores import is_json
from shadowspec.quality.tool_calls import ToolCall, arguments_of, find_calls
from shadowspec.types import Contract, OutputContract, Validity
from shadowspec.types.extras import missing_extra

SQL_PACKAGE: Final = "sqlglot"
CUT: Final = "length"  # the finish reason of an output at its token limit

# A client's schema decides how long checking against it takes: a keyword that branches doubles the work at each level.
MAX_SCHEMA_CHARACTERS = 32_768
MAX_STEPS = 20_000  # of one check: subschemas entered, and their members; a document of 1,000 rows takes 13,000


def judge(
    contract: OutputContract,
    text: str,
    finish_reason: str | None,
    calls: Sequence[tuple[str, str]] | None = None,
) -> Validity | None:
    """Whether an output satisfies the contract; None where the contract does not apply to it.

    Args:
        contract: the required form of the output.
        text: the whole output; of a contract with tools with its special tokens, by which calls are marked.
        finish_reason: why it ended.
        calls: name and arguments of each call that a server's parser cut out of the text; None: they are in it.
    """
    is_valid = _is_valid(contract, text, None if not calls else [_parsed(*call) for call in calls])
    if is_valid is None:
        return None
    if finish_reason == CUT:  # a text that parses may be the beginning of another one
        return Validity.UNFINISHED
    return Validity.VALID if is_valid else Validity.INVALID


def require_sql(dialect: str | None) -> None:
    """Raise unless SQL can be judged in this dialect.

    Raises:
        ConfigError: sqlglot is not installed, or does not know the dialect.
    """
    try:
        sqlglot = _sqlglot()
    except ImportError as error:
        raise missing_extra("contract: SQL", "sql") from error
    try:
        sqlglot.Dialect.get_or_raise(dialect)
    except ValueError as error:
        raise ConfigError(f"sql_dialect: {SQL_PACKAGE} knows no dialect {dialect!r}") from error


def _parsed(name: str, text: str) -> ToolCall | None:
    """A call that a server cut out; None of arguments that are no JSON object."""
    arguments = arguments_of(text)
    return None if arguments is None else ToolCall(name, arguments)


def _is_valid(contract: OutputContract, text: str, parsed: list[ToolCall | None] | None) -> bool | None:
    if contract.kind is Contract.SQL:
        return is_sql(text, contract.dialect)
    if contract.kind is Contract.GRAMMAR:
        return text in contract.choices if contract.pattern is None else _is_match(contract.pattern, text)
    calls = parsed
    if calls is None and (contract.kind is Contract.TOOL_CALL or contract.tools):
        calls = find_calls(text)
    if calls is not None and not (contract.is_arguments and None in calls):
        return _all(False if call is None else keeps(call, contract.tools) for call in calls)
    if contract.kind is Contract.JSON:
        return False if is_json(text) != 1.0 else contract.schema is None or fits_text(text, contract.schema)
    if contract.is_arguments:
        return _are_arguments(text, contract.tools)
    return False if contract.is_required else None


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    """Whether all hold: one that does not decides, else one that is not known."""
    known = list(verdicts)
    return False if False in known else None if None in known else True


def _are_arguments(text: str, tools: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether the text is the arguments of the only tool, by themselves."""
    functions = [function for tool in tools if isinstance(function := tool.get("function"), Mapping)]
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(arguments, dict) or not functions:
        return False
    return keeps(ToolCall(str(functions[0].get("name")), arguments), tools)


def _is_match(pattern: str, text: str) -> bool | None:
    """Whether the whole text matches; None by a pattern that RE2 does not know."""
    options = re2.Options()
    options.log_errors = False  # an invalid pattern would be written to stderr
    try:
        return re2.fullmatch(pattern, text, options) is not None
    except re2.error:
        return None


def is_sql(text: str, dialect: str | None = None) -> bool:
    """Whether the whole text is SQL: statements that sqlglot takes apart, one or several, and no bare expression."""
    sqlglot = _sqlglot()
    try:
        # The first error ends it: parsing on would skip over missing parts.
        parsed = sqlglot.parse(text, read=dialect, error_level=sqlglot.ErrorLevel.IMMEDIATE)
    except Exception:
        return False
    statements = [statement for statement in parsed if statement is not None]
    kinds = tuple(getattr(sqlglot.exp, name) for name in _STATEMENTS)
    return bool(statements) and all(isinstance(statement, kinds) for statement in statements)


def _sqlglot() -> Any:
    """sqlglot without its log, whose warnings quote the text."""
    logging.getLogger(SQL_PACKAGE).setLevel(logging.CRITICAL)
    return importlib.import_module(SQL_PACKAGE)


# sqlglot parses a bare word as a column, and unknown statements as a Command.
_STATEMENTS: Final = (
    *("Query", "DML", "DDL", "Values", "Alter", "Drop", "TruncateTable", "Describe", "Set", "Use", "Pragma"),
    *("Transaction", "Commit", "Rollback", "Analyze", "Comment", "Show", "Grant"),
)


def keeps(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether a call is of a tool that is offered, with arguments as its schema has them; with none offered, any.

    None as `fits` gives it.
    """
    if not tools:
        return True
    functions = [function for tool in tools if isinstance(function := tool.get("function"), Mapping)]
    entry = next((function for function in functions if function.get("name") == call.name), None)
    if entry is None:
        return False
    schema = entry.get("parameters")
    return not call.is_typed or not isinstance(schema, Mapping) or fits(call.arguments, schema)


def fits_text(text: str, schema: Mapping[str, Any]) -> bool | None:
    """Whether a JSON text is as a JSON schema has it; None as `fits` gives it, and by a number too long to be read."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return fits(value, schema)


def fits(value: Any, schema: Mapping[str, Any]) -> bool | None:
    """Whether a value satisfies a JSON schema; None by a schema that is unusable, or takes more than MAX_STEPS.

    No reference is fetched, patterns run in linear time and every step is counted, because all come from the request.
    """
    text = json.dumps(schema)
    if len(text) > MAX_SCHEMA_CHARACTERS or "patternProperties" in text:
        return None
    registry = importlib.import_module("referencing").Registry()
    budget = _STEPS.set([MAX_STEPS])
    try:
        return bool(_validator_class()(schema, registry=registry).is_valid(value))
    except Exception:  # an invalid schema may raise anything, recursion and lookup errors included
        return None
    finally:
        _STEPS.reset(budget)


class _OutOfStepsError(Exception):
    """A check takes too long."""


_STEPS: Final[ContextVar[list[int]]] = ContextVar("steps")  # what is left of the check that runs


def _charge(number: int) -> None:
    steps = _STEPS.get()
    steps[0] -= number
    if steps[0] < 0:
        raise _OutOfStepsError


@cache
def _validator_class() -> Any:
    """jsonschema's validator with our keywords; every subschema that it enters is charged.

    It stays itself whatever `$schema` a subschema names: another class would have neither.
    """
    jsonschema = importlib.import_module("jsonschema")
    own = {"pattern": _matches_pattern, "uniqueItems": _is_unique}
    validator_class = jsonschema.validators.extend(jsonschema.Draft202012Validator, own)
    validator_class.evolve = _entered
    return validator_class


def _entered(validator: Any, **changes: Any) -> Any:
    """jsonschema's `evolve`: the validator of a subschema."""
    schema = changes.get("schema", validator.schema)
    members = schema.values() if isinstance(schema, dict) else ()
    _charge(1 + sum(len(member) for member in members if isinstance(member, (list, dict))))
    return importlib.import_module("attrs").evolve(validator, **changes)


def _is_unique(_: Any, is_wanted: Any, instance: Any, schema: Any) -> Any:
    """jsonschema's keyword `uniqueItems`, which compares every two items."""
    if not is_wanted or not isinstance(instance, list):
        return
    texts = [json.dumps(_comparable(member), sort_keys=True) for member in instance]
    _charge(sum(map(len, texts)) // 10)
    if len(set(texts)) < len(texts):
        yield importlib.import_module("jsonschema").ValidationError("uniqueItems")


def _comparable(value: Any) -> Any:
    """A JSON value by which equal ones have one text: 1.0 is 1, as JSON Schema has it."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_comparable(member) for member in value]
    return {name: _comparable(member) for name, member in value.items()} if isinstance(value, dict) else value


def _matches_pattern(_: Any, pattern: Any, instance: Any, schema: Any) -> Any:
    """jsonschema's keyword `pattern`, by RE2; one that RE2 does not know holds."""
    if not isinstance(instance, str) or not isinstance(pattern, str):
        return
    _charge(len(instance) // 100)
    options = re2.Options()
    options.log_errors = False  # an invalid pattern would be written to stderr
    try:
        is_found = re2.search(pattern, instance, options) is not None
    except re2.error:
        return
    if not is_found:
        jsonschema = importlib.import_module("jsonschema")
        yield jsonschema.ValidationError("pattern")
