"""Token ids are those of tokenizers, whatever fastokens does."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastokens
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.models import WordLevel

from shadowspec import demo
from shadowspec.model_folder import encoder
from shadowspec.model_folder.encoder import CHECKED_EVERY, Encoder
from tests.model_folder.test_plain_tokenizer import anthropic, byte_level, sentence_pieces

SECRET = "a secret in the prompt"


def byte_fallback() -> Tokenizer:
    """BPE of characters with bytes for the others, and spaces as a piece, as those of Llama 2 and Mistral."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abcdehlow", "he", "ll"]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    made = Tokenizer(
        models.BPE(
            vocabulary, [("h", "e"), ("l", "l")], unk_token="<unk>", fuse_unk=True, byte_fallback=True,
        )
    )  # fmt: skip
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def with_added_tokens() -> Tokenizer:
    """Every property that an added token can have."""
    made = byte_level()
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.add_tokens(
        [
            AddedToken("<left>", lstrip=True),
            AddedToken("<right>", rstrip=True),
            AddedToken("word", single_word=True),
            AddedToken("\u00e9t\u00e9", normalized=True),
        ]
    )
    return made


def words() -> Tokenizer:
    """A kind that nobody serves."""
    made = Tokenizer(WordLevel({"a": 0, "b": 1, "?": 2}, "?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def published(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(anthropic(folder) / "tokenizer.json"))


def bundled(_: Path) -> Tokenizer:
    return Tokenizer.from_file(f"{demo.TARGET}/tokenizer.json")


KINDS: dict[str, Callable[[Path], Tokenizer]] = {
    "bundled": bundled,
    "published": published,
    "byte level": lambda _: byte_level(),
    "unigram": lambda _: sentence_pieces(),
    "byte fallback": lambda _: byte_fallback(),
    "added tokens": lambda _: with_added_tokens(),
    "words": lambda _: words(),
}
READ_BY_FASTOKENS = ("bundled", "byte level", "added tokens")  # it takes the spelling of a byte for the byte


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Encoder, Tokenizer]:
    """An encoder, and its tokenizer apart from it."""
    reference = KINDS[request.param](tmp_path_factory.mktemp("folder"))
    reference.no_truncation()
    reference.no_padding()
    return request.param, Encoder(reference, worth_after=0), Tokenizer.from_str(reference.to_str())


PIECES = st.sampled_from(
    ("<s>", "</s>", "<|bos|>", "<|eos|>", "<left>", "<right>", "word", "été", "e\u0301te\u0301", " ", "  ", "\n\n",
     "hello", "don't", "1234", "世界", "🌍", "\u00a0", "\x00", "<0x0A>", "\u2581", "H: A:", "<META>")
)  # fmt: skip


@given(st.lists(st.text() | st.lists(PIECES).map("".join), max_size=6), st.booleans())
def test_ids_are_those_of_tokenizers(
    pair: tuple[str, Encoder, Tokenizer], texts: list[str], adds_special: bool
) -> None:
    kind, made, reference = pair
    expected = [reference.encode(text, add_special_tokens=adds_special).ids for text in texts]
    assert made.all_ids(texts, adds_special=adds_special) == expected
    assert (made._fast is not None) == (kind in READ_BY_FASTOKENS)


def test_special_tokens_are_text_where_the_tokenizer_says_so() -> None:
    reference = byte_level()
    reference.encode_special_tokens = True
    made = Encoder(reference, worth_after=0)
    (ids,) = made.all_ids(["<s>"], adds_special=False)
    assert made._fast is not None
    assert len(ids) == 3 == len(reference.encode("<s>", add_special_tokens=False).ids)


class Wrong:
    """fastokens as it would be with a bug: a text with `marker` has other ids, or ends it."""

    def __init__(self, right: Any, marker: str, error: BaseException | None = None) -> None:
        self._right, self._marker, self._error = right, marker, error

    def encode_batch(self, texts: list[str], **options: Any) -> list[Any]:
        if self._error is not None and any(self._marker in text for text in texts):
            raise self._error
        return self._right.encode_batch([text.replace(self._marker, "") for text in texts], **options)  # type: ignore[no-any-return]


def reading(reference: Tokenizer) -> Encoder:
    """An encoder whose fastokens has read the tokenizer, and whose first text is checked."""
    made = Encoder(reference, worth_after=0)
    made.all_ids(["hello"], adds_special=False)
    assert made._fast is not None
    return made


def wrong(reference: Tokenizer, error: BaseException | None = None) -> Encoder:
    """The same, with a bug in texts with "secret"."""
    made = reading(reference)
    made._fast = Wrong(made._fast, "secret", error)
    return made


@pytest.mark.parametrize("marker", ["世", "<extra>", "'s", ""])
def test_a_tokenizer_that_it_reads_otherwise_is_left_to_tokenizers(
    monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    error = None if marker else RuntimeError("no")

    class Library:
        class Tokenizer:
            @staticmethod
            def from_json_str(text: str) -> Wrong:
                return Wrong(fastokens.Tokenizer.from_json_str(text), marker, error)

    monkeypatch.setattr(encoder, "fastokens", Library)
    made = Encoder(byte_level(), worth_after=0)
    text = "it's 世<extra>"
    assert made.all_ids([text], adds_special=False) == [byte_level().encode(text, add_special_tokens=False).ids]
    assert made._fast is None


def test_a_few_texts_are_not_worth_its_reading() -> None:
    made = Encoder(byte_level(), worth_after=3)
    for _ in range(3):
        made.all_ids(["hello"], adds_special=False)
        assert made._fast is None
    made.all_ids(["hello"], adds_special=False)
    assert made._fast is not None


def test_a_difference_in_operation_is_found_said_and_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    reference = byte_level()
    made, expected = wrong(reference), [reference.encode(SECRET, add_special_tokens=False).ids]
    with caplog.at_level(logging.WARNING):
        is_wrong = [made.all_ids([SECRET], adds_special=False) != expected for _ in range(CHECKED_EVERY + 4)]
    assert is_wrong == [True] * (CHECKED_EVERY - 1) + [False] * 5
    (said,) = caplog.messages
    assert "Earlier prompts of this process may have wrong ids" in said
    assert f"a text of {len(SECRET)} characters" in said
    assert "secret" not in said


def test_every_place_of_a_batch_is_checked_in_time() -> None:
    """Batches of one size may not hide a place."""
    for size in (2, 7, 256):
        for place in {0, 1, size - 1}:
            made = wrong(byte_level())
            batch = [SECRET if place == each else "hello" for each in range(size)]
            for _ in range(CHECKED_EVERY):
                made.all_ids(batch, adds_special=False)
            assert made._fast is None


def test_a_text_that_it_refuses_has_the_ids_of_tokenizers() -> None:
    reference = byte_level()
    made = wrong(reference, RuntimeError("a limit"))
    texts = ["hello", SECRET, "it"]
    assert made.all_ids(texts, adds_special=True) == [reference.encode(text).ids for text in texts]
    assert made._fast is not None


class Panic(BaseException):
    """As pyo3 raises one."""


def test_an_error_of_its_own_code_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    reference = byte_level()
    made = wrong(reference, Panic("inside 'secret'"))
    with caplog.at_level(logging.WARNING):
        assert made.all_ids([SECRET], adds_special=True) == [reference.encode(SECRET).ids]
    assert made._fast is None
    assert "internal error" in caplog.text
    assert "secret" not in caplog.text
    with pytest.raises(KeyboardInterrupt):
        wrong(reference, KeyboardInterrupt()).all_ids([SECRET], adds_special=True)


def test_a_byte_that_the_vocabulary_lacks_is_left_out_as_tokenizers_does() -> None:
    pieces = [piece for piece in sorted(pre_tokenizers.ByteLevel.alphabet()) if piece != "ñ"]  # of the byte 0xf1
    reference = Tokenizer(models.BPE(vocab={piece: place for place, piece in enumerate(pieces)}, merges=[]))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made, text = Encoder(reference, worth_after=0), "a\U000e0001\U00050000b"
    assert made.all_ids([text, "ab"], adds_special=False) == [reference.encode(each).ids for each in (text, "ab")]
    assert made._fast is not None


def test_it_goes_to_another_process() -> None:
    reference = byte_level()
    reference.encode_special_tokens = True
    made = reading(reference)
    again = pickle.loads(pickle.dumps(made))
    assert again.all_ids(["hello<s>"], adds_special=False) == made.all_ids(["hello<s>"], adds_special=False)
    assert len(again.all_ids(["<s>"], adds_special=False)[0]) == 3
