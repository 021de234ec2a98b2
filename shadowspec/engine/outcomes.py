"""What decoded outputs are to whoever asked for them: their text, and the flags of their run."""

from __future__ import annotations

from collections.abc import Sequence

from shadowspec.contracts import judge
from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.decode import Decoded
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.tokenizer import FolderTokenizer
from shadowspec.types import OutputContract, RunFlags, ShadowPrompt, Validity


class Answers:
    """Texts as a server delivers them: without the token that ended them, and up to the stop string that did."""

    def __init__(self, tokenizer: FolderTokenizer, end_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._end_token_ids = end_token_ids

    def text(self, request: Request, decoded: Decoded, *, is_marked: bool = False) -> str:
        """The text of an output; with its special tokens where they may mark tool calls."""
        ids: Sequence[int] = decoded.output
        has_end = bool(ids) and ids[-1] in request.end_ids(self._end_token_ids)
        decode = self._tokenizer.decode_marked if is_marked else self._tokenizer.decode
        text = decode(ids[:-1] if has_end else ids)
        return text if has_end or decoded.finish_reason != "stop" else up_to_stop(text, request.sampling.stop)

    def flags(
        self, prompt: ShadowPrompt, request: Request, candidate: Candidate, baseline: Decoded, speculative: Decoded
    ) -> RunFlags:
        """The flags of one request measured with one candidate."""
        contract = prompt.contract
        base, spec = (self._validity(contract, request, decoded) for decoded in (baseline, speculative))
        length = len(prompt.prompt_token_ids) + len(speculative.output)
        return RunFlags.judged(
            contract,
            base,
            spec,
            is_early_rejection=speculative.is_early_rejection,
            is_beyond_draft_context=isinstance(candidate.draft, LoadedModel)
            and length > candidate.draft.context_length,
            intervention=prompt.intervention,
        )

    def _validity(self, contract: OutputContract | None, request: Request, decoded: Decoded) -> Validity | None:
        if contract is None:
            return None
        return judge(contract, self.text(request, decoded, is_marked=contract.may_be_marked), decoded.finish_reason)


def up_to_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the stop string that ended it: the last one in it, as the first that counts ends a text."""
    places = [place for stop in stops if (place := text.rfind(stop)) >= 0]
    return text[: min(places)] if places else text
