"""Token ids of texts: those of `tokenizers`, by fastokens where it gives the same.

Model folders are written for tokenizers, and servers read them with it, so its ids are the right ones.  fastokens,
which vLLM and Dynamo take on request, computes them many times faster.  It is not trusted: a tokenizer is probed before
its use, and one text of `CHECKED_EVERY` is computed by both.  After one difference only tokenizers is used, as where
fastokens cannot read a tokenizer or a text.

In: a tokenizer of tokenizers, texts.  Out: token ids.  Imports: nothing of ours.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

import fastokens
from tokenizers import Tokenizer

WORTH_AFTER: Final = 1_000  # texts, for which tokenizers takes as long as fastokens to read a vocabulary of 50,000
CHECKED_EVERY: Final = 251  # texts; a prime, so that no place escapes in batches of a size that is no multiple of it
PROBED_TOKENS: Final = 2_000  # of the vocabulary at least, evenly
PROBED_CHARACTERS: Final = 100_000  # of one text, which fastokens may divide
PROBES: Final = (
    "", " ", "a", "\n", "Hello, world", "  two  spaces\n\n\ttab\r\n", "I'll we've DON'T it's", "x" * 500,
    "12345.67e-8", "!!!???---___===\\/|", "Grüße, 世界 🌍 👩\u200d👩\u200d👧", "\u2581a \u0120b \u010a",
    "a\u0301 \ufb01 \u1e9b\u0323 \u00a0\u2003\u3000.", "\x00\x01\x7f\ufffd\ufeff\u200b",
    "Привет мир مرحبا שלום नमस्ते สวัสดี 한국어", "def f(x):\n    return {'a': [x, -1]}  # ...\n\n\n",
    "https://example.com/a?b=c&d=%20#e", "_snake CamelCase SCREAMING 3D",
    "<0x0A>",
)  # fmt: skip

logger = logging.getLogger(__name__)


class Encoder:
    """Token ids of texts, neither cut nor filled, as `tokenizers` computes them; for one thread."""

    def __init__(self, reference: Tokenizer, worth_after: int = WORTH_AFTER) -> None:
        self._reference = reference
        self._worth_after: float = worth_after  # texts, after which fastokens reads the tokenizer; it does so once
        self._encoded = 0  # texts
        self._fast: fastokens.Tokenizer | None = None

    def __reduce__(self) -> tuple[Callable[[Tokenizer, bool], Encoder], tuple[Tokenizer, bool]]:
        return _again, (self._reference, self._reference.encode_special_tokens)

    def all_ids(self, texts: Sequence[str], *, adds_special: bool) -> list[list[int]]:
        """Token ids of each text, on several cores and outside the interpreter's lock."""
        before, self._encoded = self._encoded, self._encoded + len(texts)
        if before >= self._worth_after:
            self._worth_after = math.inf
            self._fast = _read_by_fastokens(self._reference)
        if self._fast is None:
            return _right_ids(self._reference, texts, adds_special)
        try:
            found = _fast_ids(self._fast, self._reference, texts, adds_special)
        except Exception:  # such as a byte that the vocabulary lacks, which tokenizers leaves out
            return _right_ids(self._reference, texts, adds_special)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of its Rust code, after which it may be in any state
            logger.warning("fastokens ended with an internal error; tokenizers, which is slower, is used from now on")
            self._fast = None
            return _right_ids(self._reference, texts, adds_special)
        for place in range(-before % CHECKED_EVERY, len(texts), CHECKED_EVERY):
            if _right_ids(self._reference, texts[place : place + 1], adds_special) != found[place : place + 1]:
                logger.warning(
                    "fastokens gave other token ids than tokenizers for a text of %d characters. From now on "
                    "tokenizers is used, which is slower. Earlier prompts of this process may have wrong ids",
                    len(texts[place]),
                )
                self._fast = None
                return _right_ids(self._reference, texts, adds_special)
        return found


def _again(reference: Tokenizer, encodes_special: bool) -> Encoder:
    reference.encode_special_tokens = encodes_special  # which the tokenizer's JSON does not say
    return Encoder(reference)


def _right_ids(reference: Tokenizer, texts: Sequence[str], adds_special: bool) -> list[list[int]]:
    # Without offsets and masks, in about two thirds of the time.
    encodings = reference.encode_batch_fast(list(texts), add_special_tokens=adds_special)
    return [encoding.ids for encoding in encodings]


def _fast_ids(
    fast: fastokens.Tokenizer, reference: Tokenizer, texts: Sequence[str], adds_special: bool
) -> list[list[int]]:
    splits = reference.encode_special_tokens
    encodings = fast.encode_batch(list(texts), add_special_tokens=adds_special, split_special_tokens=splits)
    return [encoding.ids for encoding in encodings]


def _read_by_fastokens(reference: Tokenizer) -> fastokens.Tokenizer | None:
    """The same tokenizer as fastokens reads it; None: it cannot, or gives other ids."""
    try:
        probes = _probes(reference)
        fast = fastokens.Tokenizer.from_json_str(reference.to_str())
        is_same = all(
            _fast_ids(fast, reference, probes, adds_special) == _right_ids(reference, probes, adds_special)
            for adds_special in (False, True)
        )
    except Exception as error:  # the library raises nothing narrower
        logger.debug("fastokens cannot read this tokenizer (%s), and tokenizers is used", error)
        return None
    if not is_same:
        logger.debug("fastokens gives other token ids for this tokenizer, and tokenizers is used")
    return fast if is_same else None


def _probes(reference: Tokenizer) -> list[str]:
    """Texts of many kinds, every added token between words, and tokens of the vocabulary as text and as spelt."""
    added = [token.content for token in reference.get_added_tokens_decoder().values()]
    size = reference.get_vocab_size()
    places = list(range(0, size, max(1, size // PROBED_TOKENS)))
    spelt = [reference.id_to_token(place) or "" for place in places]
    text = reference.decode(places, skip_special_tokens=True)
    short = [*PROBES, *spelt, text, "".join(added), *(f"one{token}two {token} three" for token in added)]
    together = " ".join(short)
    return [*short, together * (1 + PROBED_CHARACTERS // len(together))]
