"""Twenty calls, and how each log writes them: as its documentation or its source has the names."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shadowspec.tap.formats import MessageFormat

RECORDED = Path(__file__).with_name("recorded")
NUM_CALLS = 20
FIRST = datetime(2026, 11, 29, 10, tzinfo=UTC)
ANSWER = "Rayleigh."


def time_of(number: int) -> datetime:
    return FIRST + timedelta(seconds=number)


def body(number: int) -> dict[str, Any]:
    """A chat with every kind of sampling parameter."""
    return {
        "model": "model-a",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": f"Why is the sky blue? ({number})"},
        ],
        "temperature": round(0.1 * (number % 5), 1),
        "top_p": 0.9,
        "top_k": 20 + number,
        "min_p": 0.05,
        "max_tokens": 5 + number,
        "seed": number,
        "stop": ["\n\n"],
    }


def answer(number: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": ANSWER}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {"id": f"chatcmpl-{number}", "object": "chat.completion", "model": "model-a", "choices": [choice]}


def _batch_input(number: int) -> dict[str, Any]:
    return {"custom_id": f"r-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body(number)}


def _row(number: int) -> dict[str, Any]:
    return {"messages": [*body(number)["messages"], {"role": "assistant", "content": ANSWER}], "source": "x"}


def sharegpt(number: int) -> dict[str, Any]:
    turns = [("system", "Be brief."), ("human", f"Why is the sky blue? ({number})"), ("gpt", ANSWER)]
    return {"id": str(number), "conversations": [{"from": role, "value": text} for role, text in turns]}


def sglang(number: int) -> dict[str, Any]:
    """What `RequestLogger.log_finished_request` writes of a chat: its tokens, and the server's own names."""
    asked = body(number)
    sampling = {name: asked[name] for name in ("temperature", "top_p", "top_k", "min_p", "stop")}
    sampling |= {"max_new_tokens": asked["max_tokens"], "min_new_tokens": 0, "sampling_seed": number, "n": 1}
    sampling |= {"stop_token_ids": None, "ignore_eos": False, "skip_special_tokens": True, "no_stop_trim": False}
    obj = {"rid": f"rid-{number}", "session_id": None, "text": "Why", "input_ids": [1, 2, 3], "image_data": None}
    meta = {"id": f"rid-{number}", "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 3}
    meta |= {"completion_tokens": 2, "cached_tokens": 0, "e2e_latency": 1.5}
    ended = time_of(number) + timedelta(seconds=1.5)
    return {
        "timestamp": ended.replace(tzinfo=None).isoformat(),
        "event": "request.finished",
        "rid": f"rid-{number}",
        "obj": obj | {"sampling_params": sampling, "lora_path": None},
        "out": {"text": ANSWER, "output_ids": [4, 5], "meta_info": meta},
    }


def _databricks(number: int) -> dict[str, Any]:
    return {
        "databricks_request_id": f"d-{number}",
        "client_request_id": None,
        "request_time": time_of(number).isoformat(),
        "status_code": 200,
        "execution_duration_ms": 5,
        "request": json.dumps(body(number)),
        "response": json.dumps(answer(number)),
        "served_entity_id": "e",
        "requester": "someone",
    }


def _sagemaker(number: int) -> dict[str, Any]:
    sent = {"observedContentType": "application/json", "mode": "INPUT", "encoding": "JSON"}
    got = {"observedContentType": "application/json", "mode": "OUTPUT", "encoding": "BASE64"}
    return {
        "captureData": {
            "endpointInput": sent | {"data": json.dumps(body(number))},
            "endpointOutput": got | {"data": base64.b64encode(json.dumps(answer(number)).encode()).decode()},
        },
        "eventMetadata": {"eventId": f"s-{number}", "inferenceTime": time_of(number).strftime("%Y-%m-%dT%H:%M:%SZ")},
        "eventVersion": "0",
    }


def _bedrock(number: int) -> dict[str, Any]:
    return {
        "schemaType": "ModelInvocationLog",
        "schemaVersion": "1.0",
        "timestamp": time_of(number).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "requestId": f"b-{number}",
        "operation": "InvokeModel",
        "modelId": "model-a",
        "input": {"inputContentType": "application/json", "inputBodyJson": body(number), "inputTokenCount": 9},
        "output": {"outputContentType": "application/json", "outputBodyJson": answer(number)},
    }


def dynamo(number: int) -> dict[str, Any]:
    """A line of Dynamo's request trace in a file, whose own time counts from the writer's start."""
    payload = {
        "request_id": f"req-{number}",
        "endpoint": "openai.chat_completion",
        "model": "model-a",
        "request": body(number) | {"nvext": {"agent_hints": {"priority": 5}}},
        "response": answer(number),
        "http_request_headers": {"x-dynamo-session-id": f"session-{number % 4}"},
        "payload_complete": True,
    }
    event = {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_payload",
        "event_time_unix_ms": int(time_of(number).timestamp() * 1_000),
        "event_source": "dynamo",
        "payload": payload,
    }
    return {"timestamp": 1_000 * number, "event": event}


def apim(number: int) -> list[dict[str, Any]]:
    """The rows that Azure API Management writes of a call: model and counts, the request, the answer."""
    common = {
        "CorrelationId": f"corr-{number}",
        "TimeGenerated": time_of(number).strftime("%Y-%m-%dT%H:%M:%S.0000000Z"),
    }
    common |= {"OperationName": "ChatCompletions_Create", "Region": "West Europe", "Type": "ApiManagementGatewayLlmLog"}
    counts = {"PromptTokens": 9, "CompletionTokens": 2, "TotalTokens": 11, "IsStreamCompletion": False}
    named = {"DeploymentName": "model-a", "ModelName": "model-a", "RequestId": f"chatcmpl-{number}"}
    said = [answer(number)["choices"][0]["message"]]
    return [
        common | counts | named | {"SequenceNumber": 0, "RequestMessages": "", "ResponseMessages": ""},
        common | {"SequenceNumber": 1, "RequestMessages": json.dumps(body(number)["messages"]), "ResponseMessages": ""},
        common | {"SequenceNumber": 2, "RequestMessages": "", "ResponseMessages": json.dumps(said)},
    ]


def _apim_gateway(number: int) -> dict[str, Any]:
    return {
        "CorrelationId": f"corr-{number}",
        "TimeGenerated": time_of(number).strftime("%Y-%m-%dT%H:%M:%S.0000000Z"),
        "ApimSubscriptionId": "team-blue",
        "Method": "POST",
        "Url": "https://gw.azure-api.net/openai/deployments/model-a/chat/completions?api-version=2024-10-21",
        "ResponseCode": 200,
        "RequestHeaders": json.dumps({"X-Session-Id": f"session-{number % 4}"}),
        "RequestBody": json.dumps(body(number)),
        "ResponseBody": json.dumps(answer(number)),
        "BackendRequestBody": None,
    }


def vertex_row(number: int) -> dict[str, Any]:
    """A row of Gemini's, with JSON in columns as BigQuery exports it."""
    asked = body(number)
    system, user = asked["messages"]
    config = {
        "temperature": asked["temperature"],
        "topP": asked["top_p"],
        "topK": float(asked["top_k"]),
        "maxOutputTokens": asked["max_tokens"],
        "seed": asked["seed"],
        "stopSequences": asked["stop"],
    }
    request = {
        "systemInstruction": {"role": "user", "parts": [{"text": system["content"]}]},
        "contents": [{"role": "user", "parts": [{"text": user["content"]}]}],
        "generationConfig": config,
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    }
    said = {"content": {"role": "model", "parts": [{"text": ANSWER}]}, "finishReason": "STOP"}
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 2, "totalTokenCount": 11}
    return {
        "endpoint": None,
        "deployed_model_id": None,
        "logging_time": time_of(number).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "request_id": str(3_292_372_995_731_278_848 + number),
        "request_payload": [],
        "response_payload": [],
        "model": "publishers/google/models/model-a",
        "model_version": "default",
        "api_method": "generateContent",
        "full_request": json.dumps(request),
        "full_response": json.dumps({"candidates": [said], "usageMetadata": usage, "modelVersion": "model-a"}),
        "metadata": "{}",
    }


def vertex_own_row(number: int) -> dict[str, Any]:
    """A row of an endpoint with a model of one's own, whose server has OpenAI's API."""
    return {
        "endpoint": "1234567890",
        "deployed_model_id": "987",
        "logging_time": time_of(number).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "request_id": str(number),
        "request_payload": [json.dumps(body(number) | {"@requestFormat": "chatCompletions"})],
        "response_payload": [json.dumps(answer(number))],
    }


def guidellm_row(number: int) -> dict[str, Any]:
    return {"prompt": f"Why is the sky blue? ({number})", "output_tokens_count": 5 + number}


def _recorded(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text().splitlines()]


WRITERS: dict[str, Callable[[int], dict[str, Any]]] = {
    MessageFormat.BODY: body,
    MessageFormat.ROW: _row,
    MessageFormat.BATCH: _batch_input,
    MessageFormat.SGLANG: sglang,
    MessageFormat.DATABRICKS: _databricks,
    MessageFormat.SAGEMAKER: _sagemaker,
    MessageFormat.BEDROCK: _bedrock,
    MessageFormat.DYNAMO: dynamo,
    "guidellm rows": guidellm_row,
    "apim gateway": _apim_gateway,
    MessageFormat.VERTEX: vertex_row,
    "vertex own": vertex_own_row,
}
# Documents of each log, by its format, or by the source where one format has several.
LOGS: dict[str, list[dict[str, Any]]] = {
    MessageFormat.LITELLM: _recorded("spend_logs"),
    MessageFormat.LANGFUSE: _recorded("langfuse"),
    **{format: [write(number) for number in range(NUM_CALLS)] for format, write in WRITERS.items()},
    "openinference": _recorded("openinference"),
    "traceloop": _recorded("traceloop"),
    MessageFormat.AIPERF: [json.loads((RECORDED / "aiperf.json").read_text())],
    MessageFormat.APIM: [row for number in range(NUM_CALLS) for row in apim(number)],
    MessageFormat.GUIDELLM: [json.loads((RECORDED / "guidellm.json").read_text())],
}
SOURCES = {
    "openinference": MessageFormat.OTLP,
    "traceloop": MessageFormat.OTLP,
    "guidellm rows": MessageFormat.GUIDELLM,
    "apim gateway": MessageFormat.APIM,
    "vertex own": MessageFormat.VERTEX,
}


def format_of(log: str) -> MessageFormat:
    return SOURCES.get(log) or MessageFormat(log)


def batch_output(number: int) -> dict[str, Any]:
    response = {"status_code": 200, "request_id": f"q-{number}", "body": answer(number)}
    return {"id": f"batch_req_{number}", "custom_id": f"r-{number}", "response": response, "error": None}


# A line of nobody's format, and the map that reads it.
OWN = {"body": json.dumps(body(3)), "ts": 1_795_946_400, "client": "c-1", "answer": ANSWER, "cost": 3}
OWN_MAP = "request=body,time=ts,session=client,response=answer"
