"""An output keeps its contract, breaks it, or is unfinished; what the contract does not apply to has no validity."""

from __future__ import annotations

import json
import sys
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.errors import ConfigError
from shadowspec.quality import contracts
from shadowspec.quality.contracts import fits, is_sql, judge, keeps, require_sql
from shadowspec.quality.tool_calls import ToolCall
from shadowspec.types import Contract, OutputContract, Validity

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ANSWERED = OutputContract(Contract.TOOL_CALL, (WEATHER,), is_required=False)
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Berlin", "days": 2}}</tool_call>'


def call(name: str = "weather", **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize(
    ("text", "validity"),
    [
        (call(city="Berlin", days=2), Validity.VALID),
        (call(city="Berlin") + call(city="Bonn"), Validity.VALID),
        (call(city="Berlin") + call(town="Bonn"), Validity.INVALID),
        (call("wetter", city="Berlin"), Validity.INVALID),
        (call(days=2), Validity.INVALID),
        (call(city="Berlin", days="2"), Validity.INVALID),
        (call(city="Berlin", days=0), Validity.INVALID),
        (call(city="berlin"), Validity.INVALID),
        (CALL[:-12], Validity.INVALID),
        ("It rains in Berlin.", None),
    ],
)
def test_tool_calls_against_what_was_offered(text: str, validity: Validity | None) -> None:
    assert judge(ANSWERED, text, "stop") is validity
    required = OutputContract(Contract.TOOL_CALL, (WEATHER,))
    assert judge(required, text, "stop") is (Validity.INVALID if validity is None else validity)
    cut = None if validity is None else Validity.UNFINISHED
    assert judge(ANSWERED, text, "length") is cut


def test_without_tools_any_well_formed_call_is_right() -> None:
    contract = OutputContract(Contract.TOOL_CALL)
    assert judge(contract, call("anything", at="all"), "stop") is Validity.VALID
    assert judge(contract, call("not a name"), "stop") is Validity.INVALID


def test_values_that_are_text_are_held_against_no_schema() -> None:
    text = "<tool_call><function={}><parameter=days>many</parameter></function></tool_call>"
    assert judge(ANSWERED, text.format("weather"), "stop") is Validity.VALID
    assert judge(ANSWERED, text.format("wetter"), "stop") is Validity.INVALID


@pytest.mark.parametrize(
    ("text", "validity"),
    [('{"city": "Berlin"}', Validity.VALID), ("```json\n{}\n```", Validity.INVALID), ("{", Validity.INVALID)],
)
def test_json(text: str, validity: Validity) -> None:
    contract = OutputContract(Contract.JSON)
    assert judge(contract, text, "stop") is validity
    assert judge(contract, text, "length") is Validity.UNFINISHED
    assert judge(contract, text, None) is validity


@pytest.mark.parametrize(
    ("text", "validity"),
    [
        ('{"city": "Berlin"}', Validity.VALID),
        ('{"city": "Berlin", "days": 2}', Validity.VALID),
        ('{"city": "berlin"}', Validity.INVALID),
        ('{"days": 2}', Validity.INVALID),
        ('{"city": "Berlin", "wind": 3}', Validity.INVALID),
        ('["Berlin"]', Validity.INVALID),
        ('{"city": "Berlin"', Validity.INVALID),
        ('{"city": "Berlin"} so', Validity.INVALID),
    ],
)
def test_json_against_the_schema_of_its_request(text: str, validity: Validity) -> None:
    contract = OutputContract(Contract.JSON, schema=WEATHER["function"]["parameters"])
    assert judge(contract, text, "stop") is validity
    assert judge(contract, text, "length") is Validity.UNFINISHED
    assert "Berlin" not in repr(contract) + str(contract)
    assert "city" not in repr(contract)


def test_a_number_too_long_to_be_read_is_held_against_no_schema() -> None:
    contract = OutputContract(Contract.JSON, schema={"type": "string"})
    assert judge(contract, "9" * 5_000, "stop") is None
    assert judge(contract, "9", "stop") is Validity.INVALID


@pytest.mark.parametrize(
    ("contract", "text", "validity"),
    [
        (OutputContract(Contract.GRAMMAR, pattern="[0-9]{2}"), "17", Validity.VALID),
        (OutputContract(Contract.GRAMMAR, pattern="[0-9]{2}"), "170", Validity.INVALID),
        (OutputContract(Contract.GRAMMAR, pattern="(a+)+"), "a" * 60 + "!", Validity.INVALID),
        (OutputContract(Contract.GRAMMAR, pattern="(?=a)"), "a", None),
        (OutputContract(Contract.GRAMMAR, choices=("yes", "no")), "no", Validity.VALID),
        (OutputContract(Contract.GRAMMAR, choices=("yes", "no")), "no ", Validity.INVALID),
    ],
)
def test_the_grammar_of_a_request(
    contract: OutputContract, text: str, validity: Validity | None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert judge(contract, text, "stop") is validity
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "validity"),
    [
        ('{"city": "Berlin", "days": 2}', Validity.VALID),
        ('[{"name": "weather", "parameters": {"city": "Berlin"}}]', Validity.VALID),
        ('[{"name": "weather", "parameters": {"city": "berlin"}}]', Validity.INVALID),
        ('[{"name": "wetter", "parameters": {"city": "Berlin"}}]', Validity.INVALID),
        ('{"city": 3}', Validity.INVALID),
        ('"Berlin"', Validity.INVALID),
        ("It rains.", Validity.INVALID),
    ],
)
def test_a_call_that_is_named_may_be_its_arguments_alone(text: str, validity: Validity) -> None:
    contract = OutputContract(Contract.TOOL_CALL, (WEATHER,), is_arguments=True)
    assert judge(contract, text, "stop") is validity


def test_arguments_that_look_like_a_call_are_read_as_arguments() -> None:
    """A tool whose arguments are called name and parameters, and whose output is broken as a call."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "parameters": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "run", "parameters": schema}}
    contract = OutputContract(Contract.TOOL_CALL, (tool,), is_arguments=True)
    assert judge(contract, '{"name": "a job", "parameters": "none"}', "stop") is Validity.VALID


def test_where_tools_are_offered_a_call_is_as_good_as_json() -> None:
    contract = OutputContract(Contract.JSON, (WEATHER,))
    assert judge(contract, CALL, "stop") is Validity.VALID
    assert judge(contract, call("wetter"), "stop") is Validity.INVALID
    assert judge(contract, '{"rain": true}', "stop") is Validity.VALID
    assert judge(contract, "It rains.", "stop") is Validity.INVALID
    assert judge(OutputContract(Contract.JSON), CALL, "stop") is Validity.INVALID


@pytest.mark.parametrize(
    ("text", "dialect", "is_valid"),
    [
        ("SELECT name FROM singer WHERE age > 20;", None, True),
        ("SELECT count(*) FROM a JOIN b ON a.x = b.x GROUP BY 1 HAVING count(*) > 2 ORDER BY 2 LIMIT 3", None, True),
        ("SELECT 1 UNION ALL SELECT 2", None, True),
        ("WITH t AS (SELECT 1) SELECT * FROM t", None, True),
        ("(SELECT 1)", None, True),
        ("INSERT INTO t VALUES (1); UPDATE t SET a = 2 WHERE a = 1; DELETE FROM t", None, True),
        ("CREATE TABLE t (a INT)", None, True),
        ("ALTER TABLE t ADD COLUMN b INT", None, True),
        ("SELECT a::int, b ->> 'c' FROM t", "postgres", True),
        ("SELECT TOP 3 [a b] FROM t", "tsql", True),
        ("SELECT `a` FROM t", "mysql", True),
        ("-- nothing", None, False),
        ("", None, False),
        (" ;; ", None, False),
        ("hello", None, False),
        ("hello world", None, False),
        ("The answer is 3.", None, False),
        ("1 + 1", None, False),
        ("VACUUM the_canary", None, False),
        ("SELECT FROM WHERE", None, False),
        ("SELECT (1", None, False),
        ("SELECT 'a", None, False),
        ("SELECT 1; and so on", None, False),
        ("SELECT * FROM t WHERE a = = 2", None, False),
        ("```sql\nSELECT 1\n```", None, False),
        ("Here it is: SELECT 1", None, False),
        ("(" * 20_000, None, False),
    ],
)
def test_sql(text: str, dialect: str | None, is_valid: bool, caplog: pytest.LogCaptureFixture) -> None:
    assert is_sql(text, dialect) is is_valid
    contract = OutputContract(Contract.SQL, dialect=dialect)
    assert judge(contract, text, "stop") is (Validity.VALID if is_valid else Validity.INVALID)
    assert judge(contract, text, "length") is Validity.UNFINISHED
    assert caplog.messages == [], "sqlglot quotes what it warns of"


@given(
    st.text(max_size=40)
    | st.lists(
        st.sampled_from(
            [
                "SELECT",
                "FROM",
                "a",
                "b",
                "(",
                ")",
                "'",
                '"',
                ";",
                ",",
                "*",
                "=",
                "--",
                "/*",
                "```",
                "1",
                "|>",
                "LIMIT",
                "n",
            ]
        )
    ).map(" ".join)
)
def test_no_text_raises(text: str) -> None:
    for kind in Contract:
        assert judge(OutputContract(kind), text, "stop") in (Validity.VALID, Validity.INVALID)


@pytest.mark.parametrize("text", ["FROM t |> LIMIT n", "FROM t |> OFFSET n", "SELECT 1 |> LIMIT x y"])
def test_what_sqlglot_falls_over_is_no_sql(text: str) -> None:
    assert judge(OutputContract(Contract.SQL), text, "stop") is Validity.INVALID


def test_sql_is_refused_where_nothing_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_sql(None)
    require_sql("postgres")
    with pytest.raises(ConfigError, match="knows no dialect 'klingon'"):
        require_sql("klingon")
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    with pytest.raises(ConfigError, match=r"pip install 'shadowspec\[sql\]'"):
        require_sql(None)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 3},
        {"type": "no such type"},
        {"$ref": "https://example.invalid/schema.json"},
        {"$ref": "#/$defs/none"},
        {"properties": {"a": {"$ref": "#"}}, "$ref": "#"},
        {"patternProperties": {"a": False}},
        {"properties": {"a": {"enum": ["x" * 40_000]}}},
        {"anyOf": [{"$ref": "#/$defs/a"}] * 40},
    ],
)
def test_a_schema_that_cannot_be_used_says_nothing(schema: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    assert fits({"a": "b"}, schema) is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("pattern", ["(", "(?=b)"])
def test_a_pattern_that_re2_does_not_know_holds(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert fits({"a": "b"}, {"properties": {"a": {"pattern": pattern}}}) is True
    assert capfd.readouterr() == ("", "")


def test_nothing_is_fetched_for_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *given, **_: asked.append(given))
    assert fits({"a": "b"}, {"$ref": "https://example.invalid/schema.json"}) is None
    assert asked == []


def chain(key: str, levels: int, *, branching: str = "allOf") -> dict[str, Any]:
    """A schema of as many steps as 2 to the power of its levels."""
    steps = {f"d{place}": {branching: [{key: f"#/$defs/d{place + 1}"}] * 2} for place in range(levels)}
    return {"$defs": {**steps, f"d{levels}": {"type": "object"}}, key: "#/$defs/d0"}


@pytest.mark.parametrize(
    "schema",
    [
        *(chain(key, 40) for key in ("$ref", "$dynamicRef")),
        chain("$ref", 40, branching="anyOf") | {"unevaluatedProperties": False},
        {"$dynamicAnchor": "x", "allOf": [{"$dynamicRef": "#x"}] * 2},
        {"allOf": [{"propertyNames": {"pattern": "^[0-9]+$"}}] * 200},
    ],
)
def test_a_schema_that_branches_without_end_is_given_up(schema: dict[str, Any]) -> None:
    """A budget of steps and no clock: the answer is the same on every machine."""
    steps: list[int] = []
    charge = contracts._charge
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contracts, "_charge", lambda number: (steps.append(number), charge(number)))
        assert fits({str(number): number for number in range(500)}, schema) is None
    assert sum(steps) <= contracts.MAX_STEPS + max(steps)


def test_a_schema_of_four_levels_is_judged() -> None:
    assert fits({"a": 1}, chain("$ref", 4)) is True
    assert fits([], chain("$dynamicRef", 4)) is False


def test_a_subschema_of_another_draft_keeps_the_rules() -> None:
    """Draft 7's own `pattern` would take Python's search, which never ends here."""
    old = {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}
    assert fits({"a": "a" * 60 + "!"}, {"properties": {"a": old}}) is False


@given(st.lists(st.recursive(st.integers(0, 2) | st.booleans() | st.floats(0, 2) | st.text("ab", max_size=1),
                             lambda inner: st.lists(inner, max_size=2), max_leaves=3), max_size=5))  # fmt: skip
def test_unique_items_are_those_of_jsonschema(members: list[Any]) -> None:
    expected = jsonschema.Draft202012Validator({"uniqueItems": True}).is_valid(members)
    assert fits(members, {"uniqueItems": True}) is expected


def test_an_output_that_cannot_be_judged_has_no_validity() -> None:
    assert judge(OutputContract(Contract.JSON, schema=chain("$ref", 40)), '{"a": 1}', "stop") is None
    tool = {"function": {"name": "f", "parameters": chain("$dynamicRef", 40)}}
    assert keeps(ToolCall("f", {"a": 1}), (tool,)) is None


def test_a_pattern_takes_no_time() -> None:
    """Python's own search would go on for longer than the universe."""
    assert fits({"a": "a" * 60}, {"properties": {"a": {"pattern": "^(a+)+$"}}}) is True
    assert fits({"a": "a" * 60 + "!"}, {"properties": {"a": {"pattern": "^(a+)+$"}}}) is False


def test_references_within_a_schema_are_followed() -> None:
    schema = {"properties": {"a": {"$ref": "#/$defs/word"}}, "$defs": {"word": {"type": "string"}}}
    assert fits({"a": "b"}, schema) is True
    assert fits({"a": 3}, schema) is False


def test_tools_that_are_none_offer_nothing() -> None:
    assert keeps(ToolCall("f", {}), ({"type": "function"}, {"function": "f"})) is False
    assert keeps(ToolCall("f", {}), ({"function": {"name": "f", "parameters": None}},)) is True
