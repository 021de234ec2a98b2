"""A folder's tokenizer without transformers: the ids and prompts that transformers has, or a refusal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import litellm
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from shadowspec import demo
from shadowspec.engine.tokenizer import load_tokenizer
from shadowspec.errors import ModelError, RecordError
from shadowspec.model_folder.plain_tokenizer import OnlyTransformersError, load_plain_tokenizer
from tests.small_models import letter_tokenizer

CHATML = (
    "{{ bos_token }}{%- if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\n' }}{% generation %}{{ m.content }}{% endgeneration %}"
    "{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{%- if m.tool_calls is defined %}{{ m.tool_calls | tojson(indent=1) }}{% endif %}{{ eos_token }}{% endfor %}"
    "{% set seen = namespace(count=0) %}{% for m in messages %}{% if loop.index > 3 %}{% break %}{% endif %}"
    "{% set seen.count = seen.count + 1 %}{% endfor %}{{ seen.count }}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)
TEXTS = (
    "",
    "a",
    "Hello, world",
    "  two  spaces\n\n\ttab",
    "Grüße, 世界 🌍",
    "<s>x</s><extra> y",
    "x" * 500,
    "a\u0301\ufb01",
)
CHATS: tuple[tuple[list[dict[str, Any]], list[dict[str, Any]] | None], ...] = (
    ([{"role": "user", "content": 'Hi <b> & "you"'}], None),
    ([{"role": "user", "content": "1"}, {"role": "assistant", "content": None, "reasoning": "so"}], None),
    ([{"role": "user", "content": str(number), "tool_calls": [{"id": "é"}]} for number in range(5)], [{"name": "t"}]),
)


def byte_level() -> Tokenizer:
    """A byte-level BPE with some merges, as GPT-2 and Llama 3 have."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w"), ("x", "x"), ("xx", "xx")]
    pieces = [*alphabet, *("".join(pair) for pair in merges)]
    made = Tokenizer(models.BPE(vocab={piece: place for place, piece in enumerate(pieces)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>"])
    made.add_tokens([AddedToken("<extra>", lstrip=True)])
    ids = made.token_to_id("<s>"), made.token_to_id("</s>")
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=list(zip(("<s>", "</s>"), ids, strict=True))
    )
    return made


def sentence_pieces() -> Tokenizer:
    """A unigram tokenizer with its normalizer, as those made from SentencePiece."""
    pieces = [
        ("<unk>", 0.0),
        ("<s>", 0.0),
        ("</s>", 0.0),
        ("\u2581", -2.0),
        *((each, -3.0) for each in "aHelowrd,xyGi12"),
    ]
    made = Tokenizer(models.Unigram(pieces, unk_id=0))
    made.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def saved(folder: Path, made: Tokenizer | str, **settings: Any) -> Path:
    """A folder with a tokenizer as transformers saves it, and a config."""
    given = {"tokenizer_object": made} if isinstance(made, Tokenizer) else {"tokenizer_file": made}
    raw = PreTrainedTokenizerFast(**given, bos_token="<s>", eos_token="</s>", **settings)
    raw.chat_template = CHATML
    raw.save_pretrained(folder)
    config = {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": len(raw), "bos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def anthropic(folder: Path) -> Path:
    """The tokenizer of a published model, 65,000 tokens, which litellm carries."""
    core = Path(litellm.__file__).parent / "litellm_core_utils" / "tokenizers" / "anthropic_tokenizer.json"
    return saved(folder, str(core))


@pytest.fixture(params=["bundled", "byte level", "unigram", "letters", "published"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "bundled":
        return Path(demo.TARGET)
    if request.param == "letters":
        letter_tokenizer().save_pretrained(tmp_path)
        config = {"model_type": "llama", "max_position_embeddings": 256, "vocab_size": 12}
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return tmp_path
    makers = {
        "byte level": lambda: saved(tmp_path, byte_level()),
        "unigram": lambda: saved(tmp_path, sentence_pieces()),
    }
    return makers[request.param]() if request.param in makers else anthropic(tmp_path)


def test_ids_texts_and_prompts_are_those_of_transformers(folder: Path) -> None:
    plain, theirs = load_plain_tokenizer(str(folder)), load_tokenizer(str(folder))
    assert (plain.context_length, plain.vocabulary_size) == (theirs.context_length, theirs.vocabulary_size)
    for text in TEXTS:
        assert plain.encode(text) == theirs.encode(text)
        assert plain.encode_output(text) == (ids := theirs.encode_output(text))
        assert (plain.decode(ids), plain.decode_marked(ids)) == (theirs.decode(ids), theirs.decode_marked(ids))
    for messages, tools in CHATS:
        if folder == Path(demo.TARGET) and any(message.get("content") is None for message in messages):
            continue
        assert plain.traits_of(tools) == theirs.traits_of(tools)
        assert plain.render_chat(messages, tools) == theirs.render_chat(messages, tools)
    assert plain.with_context(9).context_length == 9


def test_many_texts_together_have_the_ids_that_each_has_alone(folder: Path) -> None:
    for tokenizer in (load_plain_tokenizer(str(folder)), load_tokenizer(str(folder))):
        asked = [(text, adds_special) for text in TEXTS for adds_special in (True, False)]
        alone = [tokenizer.encode(text) if adds else tokenizer.encode_output(text) for text, adds in asked]
        assert tokenizer.encode_all(asked) == alone
        assert tokenizer.encode_all([]) == []
        narrow = tokenizer.with_context(2)
        long = "a b " * 40
        short, refused, other = narrow.encode_all([("a", True), (long, True), ("b", True)])
        assert (short, other) == (narrow.encode("a"), narrow.encode("b"))
        assert isinstance(refused, RecordError)
        assert (refused.reason, "a b" in str(refused)) == ("longer_than_context", False)


def test_a_template_for_tools_renders_what_offers_some(tmp_path: Path) -> None:
    folder = saved(tmp_path, byte_level())
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(
        "tools: {{ tools | tojson }}", encoding="utf-8"
    )
    plain, theirs = load_plain_tokenizer(str(folder)), load_tokenizer(str(folder))
    for messages, tools in CHATS:
        assert plain.render_chat(messages, tools) == theirs.render_chat(messages, tools)
    assert plain.decode(plain.render_chat(*CHATS[2])) == 'tools: [{"name": "t"}]'


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "no_chat_template"),
        ("{{ raise_exception('no') }}", "chat_template_refused"),
        ("{{ messages.__class__.__mro__ }}", "chat_template_refused"),
        ("{% set ns = namespace(_secret=1) %}", "chat_template_refused"),
        ("{{ messages.append(1) }}", "chat_template_refused"),
    ],
)
def test_a_template_that_refuses_or_reaches_for_python_ends_the_record(
    tmp_path: Path, template: str | None, reason: str
) -> None:
    folder = saved(tmp_path, byte_level())
    (folder / "chat_template.jinja").unlink()
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    with pytest.raises(RecordError) as refused:
        load_plain_tokenizer(str(folder)).render_chat([{"role": "user", "content": "a secret"}], None)
    assert (refused.value.reason, "secret" in str(refused.value)) == (reason, False)


def changed(folder: Path, file: str, **values: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def test_what_only_transformers_can_read_names_what_is_lacking_and_the_extra(tmp_path: Path) -> None:
    whole = saved(tmp_path / "whole", byte_level())
    for number, (damage, words) in enumerate(
        (
            (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json"),
            (lambda folder: changed(folder, "config.json", max_position_embeddings=None), "states no context length"),
            (lambda folder: changed(folder, "tokenizer_config.json", pad_token="<pad>"), "names tokens that"),
        )
    ):
        copy = shutil.copytree(whole, tmp_path / str(number))
        damage(copy)
        with pytest.raises(OnlyTransformersError, match=words) as refused:
            load_plain_tokenizer(str(copy))
        assert "pip install 'shadowspec[engine]'" in str(refused.value)


def test_damage_is_named(tmp_path: Path) -> None:
    whole = saved(tmp_path / "whole", byte_level())
    with pytest.raises(ModelError, match="does not exist"):
        load_plain_tokenizer(str(tmp_path / "nothing"))
    for file, content, words in (
        ("tokenizer.json", "{}", "tokenizer.json cannot be read"),
        ("tokenizer.json", "{", "tokenizer.json is not JSON"),
        ("chat_template.jinja", b"\xff", "a chat template cannot be read"),
    ):
        copy = shutil.copytree(whole, tmp_path / f"{len(list(tmp_path.iterdir()))}")
        (copy / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ModelError, match=words):
            load_plain_tokenizer(str(copy))
