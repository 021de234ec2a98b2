"""The fake server as SGLang answers: its own API on a real socket, tokens so far in every event, drafts in meta_info.

As SGLang 0.5.23 answered on a CPU (tests/data/sglang), and as its sources count the drafts of what did not run there.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from shadowspec.servers.engines.sglang import BLOCKS
from tests.servers.fake_server import FakeServer, end_of, place_logprobs, respond, text_of


def _entry(body: dict[str, Any]) -> dict[str, Any]:
    """A body of /generate as the server that it is made from knows one."""
    sampling = body["sampling_params"]
    return {"prompt": body["input_ids"], "max_tokens": sampling["max_new_tokens"], "sampling_params": sampling}


@dataclass
class FakeSglang(FakeServer):
    """Speculates with a chain of `num_speculative_tokens`, unless told otherwise."""

    owner: str = "sglang"
    version: str = "0.5.23"
    has_metrics: bool = False
    algorithm: str = "EAGLE3"
    branches: int = 1
    num_draft_tokens: int | None = None  # None: as a chain or a block has
    caps: tuple[int, ...] | None = None  # how many steps verified how many tokens, the root among them; None: all
    thresholds: tuple[float, float] = (1.0, 1.0)  # of a single token and of accumulated probability
    device: str = "cuda"
    is_adaptive: bool = False
    is_incremental: bool = False
    info_path: str = "/server_info"
    histogram_name: str | None = "spec_correct_drafts_histogram"
    num_retractions: int = 0
    extends_chats: bool = True  # as since 0.5.23

    async def _look(self, path: str, writer: asyncio.StreamWriter) -> None:
        if path != self.info_path:
            await (respond(writer, 404, "{}") if path == "/version" else super()._look(path, writer))
            return
        await respond(writer, 200, self.info())

    def info(self) -> str:
        """As /server_info, of its fields those that are read."""
        width = self.num_speculative_tokens
        info = {
            "model_path": "/models/t",
            "weight_version": "default",
            "speculative_algorithm": self.algorithm if width else None,
            "speculative_num_steps": {"NGRAM": 0, **dict.fromkeys(BLOCKS, 1)}.get(self.algorithm, width)
            if width
            else None,
            "speculative_eagle_topk": (10 if self.algorithm == "NGRAM" else self.branches) if width else None,
            "speculative_num_draft_tokens": (self.num_draft_tokens or width + 1) if width else None,
            "speculative_adaptive": self.is_adaptive,
            "speculative_accept_threshold_single": self.thresholds[0],
            "speculative_accept_threshold_acc": self.thresholds[1],
            "speculative_use_rejection_sampling": False,
            "device": self.device,
            "internal_states": [{}],
            "mem_fraction_static": 0.88,
            **({} if self.kv_tokens is None else {"max_total_num_tokens": self.kv_tokens}),
            "version": self.version,
            **self.started,
        }
        return json.dumps(info)

    async def _tokenize(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Of texts alone."""
        assert "messages" not in body
        await super()._tokenize(path, body, writer)

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if body.get("is_chat") and not body.get("stream"):
            assert (body["max_tokens"], "stream_options" in body) == (1, False)
            choice = {"index": 0, "message": {"role": "assistant", "content": "hush"}, "finish_reason": "length"}
            if body.get("return_prompt_token_ids") and self.tells_tokens:
                choice |= {"prompt_token_ids": body["prompt"]}
            await (respond(writer, 400, "{}") if self.refuses_chats else
                   respond(writer, 200, json.dumps({"model": self.model, "choices": [choice]})))  # fmt: skip
            return
        if not body.get("stream"):
            await self._score(body, writer)
            return
        await super()._complete(body, writer)

    async def _score(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Of the first place nothing; what is told begins at `logprob_start_len`."""
        self.scored.append(body)
        ids, number, start = body["input_ids"], body["top_logprobs_num"], body["logprob_start_len"]
        rows: list[Any] = [[None, ids[start], None]]
        top: list[Any] = [None]
        for place in range(start + 1, len(ids)):
            every = place_logprobs(ids[:place])
            ranked = sorted(range(len(every)), key=lambda each: -every[each])
            rows.append([every[ids[place]], ids[place], None])
            top.append([[every[each], each, None] for each in ranked[:number]])
        meta = {"input_token_logprobs": rows, "input_top_logprobs": self.reported(top), "completion_tokens": 1}
        await respond(writer, 200, json.dumps({"text": "hush", "output_ids": [5], "meta_info": meta}))

    def restriction(self, body: dict[str, Any]) -> dict[str, Any]:
        forms = {"json_schema": "json", "regex": "regex", "ebnf": "grammar", "structural_tag": "structural_tag"}
        found = {forms[name]: value for name, value in body.get("sampling_params", {}).items() if name in forms}
        if "json" in found:
            found["json"] = json.loads(found["json"])  # SGLang takes text alone
        if "grammar" in found and '"shadowspec"' in found["grammar"]:
            return {"choice": ["shadowspec"]}
        return found

    def output(self, body: dict[str, Any]) -> list[int]:
        return super().output(body if "prompt" in body else _entry(body))

    def _chat_extended(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """A chat's events: as `_generate_chat_stream` writes them, ids and steps in one behind the text."""
        *told, last = super().events(body)
        ids: list[int] = []
        for event in told:
            event.pop("prompt_token_ids", None)
            for choice in event["choices"]:
                ids += choice.pop("token_ids", [])
            if ids and body["stream_options"].get("continuous_usage_stats"):
                event["usage"] = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        drafts = self._drafts(last["metrics"].get("speculative_decoding"))
        extension: dict[str, Any] = {}
        if drafts and body.get("return_spec_tokens_details"):
            extension["spec_tokens_details"] = {"spec_cap_length": 0.0, "spec_cap_lens_histogram": []} | drafts
        if body.get("return_input_ids_in_sglext"):
            extension["input_ids"] = body["prompt"]
        if body.get("return_output_ids_in_sglext"):
            extension["output_ids"] = [ids]
        told += [{"model": self.model, "choices": [], "sglext": extension}] if self.extends_chats else []
        return [*told, {"model": self.model, "choices": [], "usage": last["usage"]}]

    def events(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        if body.get("is_chat"):
            return self._chat_extended(body)
        entry = _entry(body)
        parts, said = self.chunks(entry)
        tokens: list[int] = []
        events = []
        cached = self.cached_tokens({"prompt": entry["prompt"], "cache_salt": body["extra_key"]})
        for place, part in enumerate(parts):
            tokens = tokens + part
            meta: dict[str, Any] = {
                "id": "r",
                "finish_reason": None,
                "prompt_tokens": len(entry["prompt"]),
                "weight_version": "default",
                "num_retractions": self.num_retractions,
                "reasoning_tokens": 0,
                "completion_tokens": len(tokens),
                "cached_tokens": cached,
                "cached_tokens_details": None,
                "dp_rank": None,
            }
            if self.tells_queue:
                meta["queue_time"] = self.queue_ms / 1e3
            if body.get("return_logprob"):
                meta["output_top_logprobs"] = [[[-0.25, 6, None], [-0.75, 7, None]]]
            if place == len(parts) - 1:
                reason = end_of(parts, entry["max_tokens"])
                meta |= {"finish_reason": {"type": reason, "length": len(tokens)}, "e2e_latency": 0.1}
                meta |= self._drafts(said)
            shown = part if self.is_incremental else tokens
            events.append({"text": text_of(shown), "output_ids": shown, "meta_info": meta})
        return events

    def _drafts(self, said: dict[str, Any] | None) -> dict[str, Any]:
        if said is None or not said["num_spec_steps"]:
            return {}
        histogram = list(said["acceptance_histogram"])
        while not histogram[-1]:
            histogram.pop()
        proposed = (self.num_draft_tokens or self.num_speculative_tokens + 1) - 1
        accepted, steps = said["num_accepted_draft_tokens"], said["num_spec_steps"]
        found = {
            "spec_accept_rate": accepted / (steps * proposed),
            "spec_verify_ct": said["num_spec_steps"],
            "spec_num_correct_drafts": said["num_accepted_draft_tokens"],
            "spec_num_proposed_drafts": said["num_spec_steps"] * proposed,
        }
        if self.caps is not None:
            verified = sum(number * count for number, count in enumerate(self.caps))
            found |= {"spec_cap_length": verified / sum(self.caps), "spec_cap_lens_histogram": list(self.caps)}
        return found | ({self.histogram_name: histogram} if self.histogram_name else {})
