"""The fake server as TensorRT-LLM answers: fields that it does not know are refused, counts ride the last choice.

Written after its sources, as `shadowspec/servers/engines/tensorrt_llm.py` names them; no server was run.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from tests.servers.fake_server import FakeServer, respond

# `CompletionRequest` of serve/openai_protocol.py, whose other fields are forbidden.
FIELDS = (
    "model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream "
    "stream_options suffix temperature top_p user lora_request prompt_ignore_length use_beam_search top_k top_p_min "
    "min_p repetition_penalty length_penalty early_stopping stop_token_ids include_stop_str_in_output ignore_eos "
    "min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens return_context_logits "
    "detokenize thinking_token_budget add_special_tokens response_format disaggregated_params priority "
    "conversation_params"
)


@dataclass
class FakeTensorRtLlm(FakeServer):
    """Counts drafts with `per_request_spec_decode_stats: true`, unless told otherwise."""

    owner: str = "tensorrt_llm"
    version: str = "1.4.0rc1"
    has_metrics: bool = False
    has_stats: bool = True
    has_schedule: bool = False  # of depths by batch size: no depth is reported
    method: str = "Eagle3"

    async def _look(self, path: str, writer: asyncio.StreamWriter) -> None:
        if path == "/prometheus/metrics" and self.has_metrics:
            await respond(writer, 200, self._metrics())
        elif path == "/v1/models":  # without a root, and without a length
            entry = {"id": self.model, "object": "model", "created": 1, "owned_by": self.owner}
            await respond(writer, 200, json.dumps({"object": "list", "data": [entry]}))
        else:
            await (respond(writer, 404, "{}") if path == "/metrics" else super()._look(path, writer))

    def _metrics(self) -> str:
        depth, name = self.num_speculative_tokens, "trtllm_speculative_config_info"
        labels = f'spec_enabled="true",spec_method="{self.method}",spec_num_tokens="{depth}"'
        shown = labels if depth else 'spec_enabled="false"'
        return f"# TYPE {name} gauge\n{name}{{{shown}}} 1.0\n"

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if unknown := body.keys() - set(FIELDS.split()):
            await respond(writer, 400, json.dumps({"error": f"Extra inputs are not permitted: {sorted(unknown)}"}))
            return
        await super()._complete(body, writer)

    def cached_tokens(self, body: dict[str, Any]) -> int:
        return super().cached_tokens({**body, "cache_salt": ""})

    def events(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Text or token ids, as `detokenize` asks for; an event has every field, null where it has nothing."""
        *events, last = super().events(body)
        said = last["metrics"].get("speculative_decoding")
        for event in events:
            (choice,) = event["choices"]
            choice |= {"text": "", "stop_reason": None} if not body["detokenize"] else {"token_ids": None}
            event["usage"] = None
        if said is not None and said["num_spec_steps"] and self.has_stats:
            events[-1]["choices"][0]["speculative_decoding"] = self._counted(said)
        return [*events, {name: value for name, value in last.items() if name != "metrics"}]

    def _counted(self, said: dict[str, Any]) -> dict[str, Any]:
        accepted, drafted = said["num_accepted_draft_tokens"], said["num_draft_tokens"]
        return {
            "acceptance_rate": accepted / drafted,
            "total_accepted_draft_tokens": accepted,
            "total_draft_tokens": drafted,
            "num_spec_steps": said["num_spec_steps"],
            "acceptance_histogram": said["acceptance_histogram"],
            "num_spec_tokens": None if self.has_schedule else self.num_speculative_tokens,
        }
