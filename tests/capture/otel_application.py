"""An application that calls a model with OpenAI's client; OpenTelemetry is put around it from outside."""

from openai import OpenAI
from otel_session import session, watch

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Why is the sky blue?"}
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Weather", "parameters": PARAMETERS}}
CALL = {"id": "c-1", "type": "function", "function": {"name": "look_up", "arguments": '{"place": "Paris"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c-1", "content": "rain"}

client = OpenAI(base_url="http://127.0.0.1:18080/v1", api_key="none")
create = client.chat.completions.create
watch()
with session("s-1"):
    create(model="chat", messages=[SYSTEM, QUESTION], temperature=0.7, top_p=0.9, max_tokens=20, stop=["\n\n"], seed=3)
    list(create(model="chat", messages=[QUESTION], max_tokens=20, stream=True))
    create(model="chat", messages=[QUESTION, CALLED, RESULT], max_tokens=20, tools=[TOOL])
create(model="chat", messages=[QUESTION], max_tokens=20, response_format={"type": "json_object"})
