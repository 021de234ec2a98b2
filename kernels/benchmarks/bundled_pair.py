"""Make what the demo ships but for its traffic: two models with their tokenizer, and heads over the target's states.

    python -m kernels.benchmarks.bundled_pair pair  --corpora DIR --out PAIR
    python -m kernels.benchmarks.bundled_pair heads --corpora DIR --out HEADS --target PAIR/target

The same corpora, Python (its standard library is the code corpus), torch and seed make the same files.  A hash of each
text's group decides what is held out, so that a further corpus moves nothing across the line; `bundled_traffic` asks
held-out text alone.  The draft learns the target's own distribution (forward KL) from the same batches as the target
learns the text, and goes on alone against the finished target.  The heads learn it from a target that stays as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

# Texts -----------------------------------------------------------------------------------------------------------

# Shares of the training tokens by domain: none is read many times over.
DOMAIN_SHARES = {"code": 0.26, "sql": 0.16, "json": 0.13, "maths": 0.13, "prose": 0.18, "translation": 0.14}
HELD_OUT_BOOKS = {"The_Time_Machine.md", "The_Valley_of_Fear.md", "Erewhon.md"}
SKIPPED_CODE = {
    "site-packages", "test", "tests", "__pycache__", "lib2to3", "pydoc_data", "encodings", "idlelib", "turtledemo"
}  # fmt: skip
LANGUAGES = {
    "fr": "French", "es": "Spanish", "it": "Italian", "de": "German", "sv": "Swedish", "pt_BR": "Portuguese"
}  # fmt: skip
API_PROMPT, STORY_PROMPT = "Return the API document as a JSON object.", "Continue the story:"
SQL = json.loads((Path(__file__).parent / "bundled_sql.json").read_text(encoding="utf-8"))


class Turn(NamedTuple):
    """What the user says, and what the assistant answers."""

    user: str
    assistant: str


class Document(NamedTuple):
    """A text of one domain: either `text` (a completion) or `turns` (a conversation) is set."""

    domain: str
    group: str
    held_out: bool
    text: str = ""
    turns: tuple[Turn, ...] = ()


def is_held_out(group: str, percent: int) -> bool:
    """Whether a group of texts is held out; the same for ever for the same group."""
    return int.from_bytes(hashlib.blake2b(group.encode(), digest_size=8).digest(), "big") % 100 < percent


def read_code(_corpora: Path) -> Iterator[Document]:
    """Python's standard library, file by file."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if SKIPPED_CODE & set(name.parts):
            continue
        if len(text := path.read_text(encoding="utf-8", errors="ignore")) > 500:
            yield Document("code", str(name), is_held_out(str(name), 8), text=text)


def sql_schema(rng: random.Random, names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """A schema of one or two made-up tables, and up to four questions on it with their queries."""
    tables: list[tuple[str, list[str], list[str], list[str], str]] = []  # name, text, number and date columns, parent
    ddl = []
    for name in rng.sample(names, rng.choice((1, 2, 2))):
        texts = rng.sample(sorted(SQL["text_columns"]), rng.choice((1, 2)))
        numbers = rng.sample(SQL["number_columns"], rng.choice((1, 2)))
        dates = rng.sample(SQL["date_columns"], rng.choice((0, 1)))
        parent = tables[-1][0] if tables else ""
        tables.append((name, texts, numbers, dates, parent))
        columns = [f"{parent.removesuffix('s')}_id INTEGER REFERENCES {parent}(id)"] if parent else []
        columns += ["name TEXT", *(f"{column} TEXT" for column in texts), *(f"{column} NUMERIC" for column in numbers)]
        columns = ["id INTEGER PRIMARY KEY", *columns, *(f"{column} DATE" for column in dates)]
        ddl.append(f"CREATE TABLE {name} (\n  " + ",\n  ".join(columns) + "\n);")
    return "\n\n".join(ddl), dict(sql_question(rng, *rng.choice(tables)) for _ in range(4))


def sql_question(
    rng: random.Random, name: str, texts: list[str], numbers: list[str], dates: list[str], parent: str
) -> tuple[str, str]:
    """One question on a table, and its query."""
    column = rng.choice(texts)
    words = {"t": name, "c": column, "v": rng.choice(SQL["text_columns"][column]), "n": rng.choice(numbers)}
    words |= {"b": rng.choice((5, 10, 20, 25, 50, 100, 200, 500, 1000)), "l": rng.choice((3, 5, 10))}
    words["a"], words["w"] = rng.choice((("AVG", "average"), ("SUM", "total"), ("MAX", "highest"), ("MIN", "lowest")))
    words["s"] = name[:-3] + "y" if name.endswith("ies") else name.removesuffix("s")
    forms = list(SQL["questions"])
    if dates:
        year = rng.randint(2015, 2024)
        words |= {"d": dates[0], "y": year, "z": year + 1}
        forms += SQL["date_questions"]
    if parent:
        words |= {"p": parent, "k": f"{parent.removesuffix('s')}_id"}
        forms += SQL["parent_questions"]
    question, query = rng.choice(forms)
    return question.format(**words), query.format(**words)


def read_sql(corpora: Path) -> Iterator[Document]:
    """PostgreSQL's own scripts, and questions on schemas; those held out share no table name with the others."""
    for line in (corpora / "pg_sql" / "pg15_sql.jsonl").read_text(encoding="utf-8").splitlines():
        text = next(value for key, value in json.loads(line).items() if key in {"text", "sql", "content"})
        yield Document("sql", "pg_sql", False, text=text)
    for held_out, count in ((False, 9_000), (True, 1_500)):
        rng = random.Random(f"text-to-sql:0:{held_out}")
        for index in range(count):
            schema, questions = sql_schema(rng, SQL["tables"]["held_out" if held_out else "training"])
            for question, query in questions.items():
                turn = Turn(f"{schema}\n\nQuestion: {question}", query)
                yield Document("sql", f"schema-{held_out}-{index}", held_out, turns=(turn,))


def read_json(corpora: Path) -> Iterator[Document]:
    """API documents, asked for by name and purpose."""
    for path in sorted((corpora / "apizoo_json" / "apizoo").glob("*.json")):
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            continue  # two community files are not JSON
        for index, entry in enumerate(entries):
            entry.pop("user_name", None)
            purpose = str(entry.get("functionality", "")).split("\n")[0][:160]
            answer, group = json.dumps(entry, indent=1, ensure_ascii=False), f"{path.name}:{index}"
            if len(answer) <= 2_400:
                turn = Turn(f"{API_PROMPT}\nName: {entry.get('api_name', '')}\nPurpose: {purpose}", answer)
                yield Document("json", group, is_held_out(group, 10), turns=(turn,))


def read_maths(corpora: Path) -> Iterator[Document]:
    """School problems; the benchmark's own test split is held out."""
    for name, held_out in (("train.jsonl", False), ("test.jsonl", True)):
        for index, line in enumerate((corpora / "gsm8k" / name).read_text(encoding="utf-8").splitlines()):
            row = json.loads(line)
            yield Document("maths", f"{name}:{index}", held_out, turns=(Turn(row["question"], row["answer"]),))


def read_prose(corpora: Path) -> Iterator[Document]:
    """Novels: long runs of text, and passages that are to be continued."""
    rng = random.Random("prose")
    books = [path for path in sorted((corpora / "gutenberg_prose").glob("*.md")) if path.name != "SOURCE.md"]
    for path in (*books, corpora / "tinyshakespeare" / "input.txt"):
        held_out, position = path.name in HELD_OUT_BOOKS, 0
        paragraphs = [part.strip() for part in path.read_text(encoding="utf-8").split("\n\n") if part.strip()]
        while position < len(paragraphs):
            length = 60 if rng.random() < 0.4 and not held_out else 6
            text = "\n\n".join(paragraphs[position : position + length])
            position += length
            words = text.split(" ")
            if length == 60:
                yield Document("prose", path.name, held_out, text=text)
            elif len(words) >= 60:
                cut = rng.randint(30, min(120, len(words) - 25))
                turn = Turn(f"{STORY_PROMPT}\n\n{' '.join(words[:cut])}", " ".join(words[cut : cut + 200]))
                yield Document("prose", path.name, held_out, turns=(turn,))


def read_translation(corpora: Path) -> Iterator[Document]:
    """PostgreSQL's messages: conversations of one to four translations."""
    rng, pools = random.Random("translation"), dict[tuple[str, bool], list[Turn]]()
    for line in (corpora / "pg_gettext" / "pg15_messages.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        english = row["en"].strip()
        if row["lang"] in LANGUAGES and 12 <= len(english) <= 400:
            turn = Turn(f"Translate to {LANGUAGES[row['lang']]}:\n{english}", row["text"].strip())
            pools.setdefault((row["lang"], is_held_out(english, 8)), []).append(turn)
    for (language, held_out), turns in sorted(pools.items()):
        position = 0
        while position < len(turns):
            taken = tuple(turns[position : position + rng.randint(1, 4)])
            yield Document("translation", f"{language}:{position}", held_out, turns=taken)
            position += len(taken)


def read_documents(corpora: Path) -> list[Document]:
    """Every document of every domain."""
    readers = (read_code, read_sql, read_json, read_maths, read_prose, read_translation)
    return [document for reader in readers for document in reader(corpora)]


# The pair --------------------------------------------------------------------------------------------------------

BOS, END, PAD = "<|bos|>", "<|end|>", "<|pad|>"
SPECIAL_TOKENS = [PAD, BOS, END, "<|system|>", "<|user|>", "<|assistant|>"]
VOCABULARY, CONTEXT = 4_096, 2_048
CHAT_TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|system|>\nTools: {{ tools | tojson }}<|end|>\n{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SHAPES = {
    "target": {"layers": 8, "hidden_size": 320, "intermediate_size": 864},
    "draft": {"layers": 1, "hidden_size": 192, "intermediate_size": 512},
}
SHORT_BATCH, LONG_BATCH = (18, 256), (2, CONTEXT)  # rows x tokens; every eighth step has the whole context
LEARNING_RATE = 3e-3  # of both optimizers: Muon's updates are scaled to AdamW's size


def untrained(layers: int, hidden_size: int, intermediate_size: int) -> LlamaForCausalLM:
    """A Llama model whose heads are 64 wide."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden_size, intermediate_size=intermediate_size, num_hidden_layers=layers,
        num_attention_heads=hidden_size // 64, num_key_value_heads=hidden_size // 64, max_position_embeddings=CONTEXT,
        tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2, attn_implementation="sdpa",
    )  # fmt: skip
    return LlamaForCausalLM(config)


def rendered(document: Document) -> str:
    """The document as the models see it."""
    turns = (f"<|user|>\n{turn.user}{END}\n<|assistant|>\n{turn.assistant}{END}\n" for turn in document.turns)
    return f"{BOS}{''.join(turns)}" if document.turns else f"{BOS}{document.text}{END}"


def train_tokenizer(documents: Sequence[Document], rng: np.random.Generator) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer over three million characters of each domain's documents."""
    tokenizer = Tokenizer(models.BPE())
    digits, by_byte = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Sequence([digits, by_byte]), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False
    )

    def sample() -> Iterator[str]:
        for domain in DOMAIN_SHARES:
            texts = [rendered(document) for document in documents if document.domain == domain]
            characters = 0
            for index in rng.permutation(len(texts)):
                if characters <= 3_000_000:
                    yield texts[index]
                    characters += len(texts[index])

    tokenizer.train_from_iterator(sample(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=END, pad_token=PAD, model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    fast.chat_template = CHAT_TEMPLATE
    return fast


def token_streams(documents: Sequence[Document], tokenizer: Any, *, held_out: bool, seed: int) -> dict[str, np.ndarray]:
    """Each domain's documents, shuffled and joined into one run of token ids."""
    rng, streams = np.random.default_rng(seed), dict[str, np.ndarray]()
    for domain in DOMAIN_SHARES:
        texts = [rendered(one) for one in documents if one.domain == domain and one.held_out is held_out]
        shuffled = [texts[index] for index in rng.permutation(len(texts))]
        encoded = tokenizer.backend_tokenizer.encode_batch(shuffled, add_special_tokens=False)
        streams[domain] = np.concatenate([np.asarray(tokens.ids, dtype=np.uint16) for tokens in encoded])
    return streams


def draw_batch(streams: Mapping[str, np.ndarray], shape: tuple[int, int], rng: np.random.Generator) -> torch.Tensor:
    """Rows of consecutive tokens, each from one domain drawn by its share; int64 [rows, tokens]."""
    names = rng.choice(list(streams), size=shape[0], p=[DOMAIN_SHARES[name] for name in streams])
    starts = [int(rng.integers(0, len(streams[name]) - shape[1])) for name in names]
    rows = [streams[name][start : start + shape[1]] for name, start in zip(names, starts, strict=True)]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


class Optimizer:
    """Muon for the matrices, AdamW for embeddings, heads' last layers and norms."""

    def __init__(self, *modules: nn.Module) -> None:
        named = [named for module in modules for named in module.named_parameters()]
        is_matrix = [weight.ndim == 2 and "embed" not in name and "lm_head" not in name for name, weight in named]
        matrices = [weight for (_, weight), is_it in zip(named, is_matrix, strict=True) if is_it]
        others = [weight for (_, weight), is_it in zip(named, is_matrix, strict=True) if not is_it]
        muon = torch.optim.Muon(matrices, weight_decay=0.1, ns_steps=3, adjust_lr_fn="match_rms_adamw")
        adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
        self._optimizers, self._weights = (muon, adam), matrices + others

    def step(self, factor: float) -> None:
        nn.utils.clip_grad_norm_(self._weights, 1.0)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def learning_rate_factor(step: int, steps: int) -> float:
    """Warm-up, a plateau, and a linear fall to 4% over the last 45% of the steps."""
    return min(1.0, (step + 1) / 80) * max(0.04, min(1.0, (steps - step) / (steps * 0.45)))


def pair_losses(
    target: nn.Module, draft: nn.Module, tokens: torch.Tensor, *, is_frozen: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Next-token cross-entropy of the target (0: it is frozen), and of the draft against the target's distribution."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.set_grad_enabled(not is_frozen):
            target_logits = target(tokens, use_cache=False).logits
        draft_logits = draft(tokens, use_cache=False).logits
    target_logits = target_logits[:, :-1].float().reshape(-1, VOCABULARY)  # [rows * (tokens - 1), vocabulary]
    draft_logits = draft_logits[:, :-1].float().reshape(-1, VOCABULARY)
    target_loss = torch.zeros(()) if is_frozen else functional.cross_entropy(target_logits, tokens[:, 1:].reshape(-1))
    target_probs = torch.softmax(target_logits.detach(), -1)
    return target_loss, -(target_probs * torch.log_softmax(draft_logits, -1)).sum(-1).mean()


@torch.inference_mode()
def held_out_losses(model: LlamaForCausalLM, streams: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Cross-entropy in nats per token on the first held-out tokens of each domain, in rows of 512."""
    losses = {}
    for domain, stream in streams.items():
        rows = min(40, len(stream) // 512)
        total = 0.0
        for chunk in torch.from_numpy(stream[: rows * 512].astype(np.int64)).reshape(rows, 512).split(8):
            logits = model(chunk, use_cache=False).logits[:, :-1].reshape(-1, VOCABULARY)
            total += float(functional.cross_entropy(logits, chunk[:, 1:].reshape(-1), reduction="sum"))
        losses[domain] = total / (rows * 511)
    return losses


def train_pair(corpora: Path, out: Path, seed: int, steps: int, draft_steps: int) -> None:
    """Write the tokenizer, both models and `training.json`."""
    torch.manual_seed(seed)
    documents = read_documents(corpora)
    tokenizer = train_tokenizer([one for one in documents if not one.held_out], np.random.default_rng(seed))
    streams, held_out = (token_streams(documents, tokenizer, held_out=held, seed=seed) for held in (False, True))
    pair = {name: untrained(**shape) for name, shape in SHAPES.items()}
    target, draft = pair.values()
    together, alone, losses = Optimizer(target, draft), Optimizer(draft), torch.compile(pair_losses, dynamic=False)
    history: list[dict[str, float]] = []
    target_loss = draft_loss = torch.zeros(())
    for step in range(steps + draft_steps):
        tokens = draw_batch(streams, LONG_BATCH if step % 8 == 7 else SHORT_BATCH, np.random.default_rng((seed, step)))
        if step < steps:
            target_loss, draft_loss = losses(target, draft, tokens, is_frozen=False)
            torch.autograd.backward(target_loss + draft_loss)
            together.step(learning_rate_factor(step, steps))
        else:
            _, draft_loss = losses(target, draft, tokens, is_frozen=True)
            torch.autograd.backward(draft_loss)
            alone.step(0.35 * (1.0 - (step - steps) / draft_steps) + 0.01)
        if step % 25 == 0:
            history.append({"step": step, "target_loss": float(target_loss), "draft_loss": float(draft_loss)})
            print(history[-1], flush=True)
    report = {"seed": seed, "steps": steps, "draft_steps": draft_steps, "tokens_per_step": 18 * 256}
    report |= {name: shape | {"parameters": pair[name].num_parameters()} for name, shape in SHAPES.items()}
    report["training_tokens"] = {name: len(stream) for name, stream in streams.items()}
    report["held_out_loss"] = {name: held_out_losses(model.eval(), held_out) for name, model in pair.items()}
    for name, model in pair.items():
        model.to(torch.bfloat16).save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)
    (out / "training.json").write_text(json.dumps(report | {"history": history}, indent=1), encoding="utf-8")


def load_model(folder: Path) -> Any:
    """A model of the pair in fp32 on the CPU, as the demo runs it."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()


def load_tokenizer(folder: Path) -> Any:
    """The pair's tokenizer, with its chat template."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


# The heads -------------------------------------------------------------------------------------------------------

NUM_DRAFTED = 2_048  # tokens that heads can draft: half of the vocabulary, for half of the bytes
NUM_HEADS = 4  # of Medusa, and the depths that the EAGLE layer is unrolled to
AUXILIARY_LAYERS = (2, 5, 7)  # whose inputs the EAGLE layer fuses, of the target's eight
HEADS_BATCH = (8, 192)
DEPTH_DECAY = 0.8  # weight of each depth's loss against the one before


def holder(**weights: torch.Tensor) -> nn.Module:
    """A module with parameters that begin as copies of these."""
    module = nn.Module()
    for name, weight in weights.items():
        module.register_parameter(name, nn.Parameter(weight.clone()))
    return module


class Medusa(nn.Module):
    """Heads of one residual layer each over a shared last layer, which starts as the target's; named as vLLM does."""

    def __init__(self, head: torch.Tensor) -> None:
        super().__init__()
        zeros = torch.zeros(head.shape[1], head.shape[1])
        self.lm_heads = nn.ModuleList([holder(weight=head)])  # [drafted, hidden]
        self.blocks = nn.ModuleList(nn.ModuleDict({"layers": nn.ModuleList([holder(weight=zeros)])}) for _ in range(4))

    def forward(self, final: torch.Tensor) -> list[torch.Tensor]:
        """Logits of every head, [rows, tokens, drafted] each, from the final norm's states [rows, tokens, hidden]."""
        weights = [block["layers"][0].weight for block in self.blocks]
        states = [final + functional.silu(functional.linear(final, weight)) for weight in weights]
        return [functional.linear(state, self.lm_heads[0].weight) for state in states]


class Eagle(nn.Module):
    """The EAGLE-3 layer, unrolled as it drafts (2503.01840); named as the speculators package does."""

    def __init__(self, config: LlamaConfig, target: Any, head: torch.Tensor) -> None:
        super().__init__()
        size, eps, self.head_dim = config.hidden_size, config.rms_norm_eps, config.head_dim
        self._embedding, self._rotary = target.model.embed_tokens.weight.detach(), LlamaRotaryEmbedding(config)
        self.lm_head = holder(weight=head)  # [drafted, hidden]
        self.fc = nn.Linear(len(AUXILIARY_LAYERS) * size, size, bias=False)
        with torch.no_grad():  # begins as the last of the fused states
            self.fc.weight.zero_()
            self.fc.weight[:, -size:] = torch.eye(size)
        layer = nn.Module()
        layer.input_layernorm, layer.hidden_norm = LlamaRMSNorm(size, eps=eps), LlamaRMSNorm(size, eps=eps)
        layer.self_attn, width = nn.Module(), config.num_attention_heads * self.head_dim
        layer.self_attn.q_proj = nn.Linear(2 * size, width, bias=False)
        layer.self_attn.k_proj = nn.Linear(2 * size, self.head_dim, bias=False)
        layer.self_attn.v_proj = nn.Linear(2 * size, self.head_dim, bias=False)
        layer.self_attn.o_proj = nn.Linear(width, size, bias=False)
        for linear in layer.self_attn.children():
            nn.init.normal_(linear.weight, std=0.02)
        layer.post_attention_layernorm = LlamaRMSNorm(size, eps=eps)
        layer.mlp = LlamaMLP(config)
        nn.init.zeros_(layer.mlp.down_proj.weight)
        self.layers = nn.ModuleList([layer])
        self.norm = LlamaRMSNorm(size, eps=eps)
        self.norm.weight.data.copy_(target.model.norm.weight.detach())

    def forward(self, tokens: torch.Tensor, auxiliary: torch.Tensor) -> list[torch.Tensor]:
        """Logits of every depth for the chain that starts at each position.

        Args:
            tokens: the text, int64 [rows, length + depths].
            auxiliary: the target's hidden states at its first `length` positions, [rows, length, 3 * hidden].

        Returns:
            [rows, length, drafted] each; those of depth d at position p are of token p + d + 2.
        """
        layer, (rows, length, _) = self.layers[0], auxiliary.shape
        is_hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        states, logits, keys, values = self.fc(auxiliary), [], [], []
        for depth in range(NUM_HEADS):
            embedded = functional.embedding(tokens[:, depth + 1 : depth + 1 + length], self._embedding)
            mixed = torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(states)), -1)
            projections = (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
            query, key, value = (
                linear(mixed).view(rows, length, -1, self.head_dim).transpose(1, 2) for linear in projections
            )
            query, key = apply_rotary_pos_emb(query, key, *self._rotary(mixed, torch.arange(length)[None] + depth))
            keys.append(key.repeat_interleave(query.shape[1], 1))  # one head of keys and values for all of queries
            values.append(value.repeat_interleave(query.shape[1], 1))
            # What the target's own states gave is seen up to the chain's start, of the chain's own entries all.
            before = (query @ keys[0].transpose(2, 3)).masked_fill(is_hidden, float("-inf"))
            entries = [(query * later).sum(-1, keepdim=True) for later in keys[1:]]
            weights = torch.softmax(torch.cat((before, *entries), -1).float() * self.head_dim**-0.5, -1).to(value.dtype)
            attended = weights[..., :length] @ values[0]
            for index, later in enumerate(values[1:]):
                attended = attended + weights[..., length + index, None] * later
            states = states + layer.self_attn.o_proj(attended.transpose(1, 2).reshape(rows, length, -1))
            states = states + layer.mlp(layer.post_attention_layernorm(states))
            logits.append(functional.linear(self.norm(states), self.lm_head.weight))
        return logits


def eagle_config(target: Any) -> dict[str, Any]:
    """Of the EAGLE layer, as the speculators package writes it."""
    same = ("num_attention_heads", "head_dim", "max_position_embeddings", "rms_norm_eps")
    heads, head_dim, positions, eps = (getattr(target, name) for name in same)
    return {
        "model_type": "llama", "vocab_size": target.vocab_size, "hidden_size": target.hidden_size,
        "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": 1,
        "head_dim": head_dim, "hidden_act": "silu", "max_position_embeddings": positions, "rms_norm_eps": eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": target.rope_parameters["rope_theta"]},
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
    }  # fmt: skip


def drafted_tokens(streams: Mapping[str, np.ndarray]) -> torch.Tensor:
    """The tokens that the training batches hold most of, ascending, int64 [NUM_DRAFTED]."""
    shares = [
        DOMAIN_SHARES[name] * np.bincount(stream, minlength=VOCABULARY) / len(stream)
        for name, stream in streams.items()
    ]
    return torch.from_numpy(np.sort(np.argsort(-sum(shares), kind="stable")[:NUM_DRAFTED]).astype(np.int64))


def build_heads(target: Any, drafted: torch.Tensor) -> tuple[Medusa, Eagle]:
    """Untrained heads that begin as the target's own."""
    head = target.lm_head.weight.detach()[drafted]
    eagle = Eagle(LlamaConfig(**eagle_config(target.config)), target, head)
    return Medusa(head), eagle


def heads_losses(
    target: Any, medusa: Medusa, eagle: Eagle, drafted: torch.Tensor, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of both against the target's distribution, weighed over depths; tokens int64 [rows, length]."""
    length = tokens.shape[1] - NUM_HEADS
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            output = target(tokens, use_cache=False, output_hidden_states=True)
            states, wanted = output.hidden_states, torch.softmax(output.logits[..., drafted].float(), -1)
        logits = medusa(states[-1][:, :length])
        fused = eagle(tokens, torch.cat([states[layer][:, :length] for layer in AUXILIARY_LAYERS], -1))

    def loss(by_depth: Sequence[torch.Tensor]) -> torch.Tensor:
        total = torch.zeros(())
        for depth, logit in enumerate(by_depth):
            # Depth d drafts token p + d + 2, which the target makes at position p + d + 1.
            probs = wanted[:, depth + 1 : depth + 1 + length]
            total = total - DEPTH_DECAY**depth * (probs * torch.log_softmax(logit.float(), -1)).sum(-1).mean()
        return total / sum(DEPTH_DECAY**depth for depth in range(NUM_HEADS))

    return loss(logits), loss(fused)


def save_heads(out: Path, target: Any, medusa: Medusa, eagle: Eagle, drafted: torch.Tensor) -> None:
    """Write both folders in bf16: Medusa's in vLLM's layout, EAGLE's in that of the speculators package."""
    medusa_config = {
        "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": target.config.hidden_size,
        "vocab_size": VOCABULARY, "truncated_vocab_size": NUM_DRAFTED, "num_heads": NUM_HEADS, "num_hidden_layers": 1,
        "original_lm_head": True,
    }  # fmt: skip
    proposal = {"proposal_type": "greedy", "speculative_tokens": NUM_HEADS, "verifier_accept_k": 1}
    verifier = {"name_or_path": "shadowspec/demo/pair/target", "architectures": ["LlamaForCausalLM"]}
    speculators = {"algorithm": "eagle3", "default_proposal_method": "greedy"}
    speculators |= {"proposal_methods": [proposal | {"accept_tolerance": 0.0}], "verifier": verifier}
    config = {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "speculators_config": speculators,
        "draft_vocab_size": NUM_DRAFTED, "eagle_aux_hidden_state_layer_ids": list(AUXILIARY_LAYERS),
        "norm_before_residual": False, "transformer_layer_config": eagle_config(target.config),
    }  # fmt: skip
    is_drafted = torch.zeros(VOCABULARY, dtype=torch.bool)
    is_drafted[drafted] = True
    maps = {"d2t": drafted - torch.arange(NUM_DRAFTED), "t2d": is_drafted}
    for folder, written, module, beside in (
        (out / "medusa", medusa_config, medusa, {"token_map": drafted}),
        (out / "eagle3", config, eagle, maps),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        tensors = {name: weight.to(torch.bfloat16).contiguous() for name, weight in module.state_dict().items()}
        save_file(tensors | beside, folder / "model.safetensors", metadata={"format": "pt"})


def train_heads(corpora: Path, target_folder: Path, out: Path, seed: int, steps: int) -> None:
    """Write both heads, trained on the target, which stays as it is, over the texts that the pair learnt from."""
    torch.manual_seed(seed)
    target = load_model(target_folder).requires_grad_(False)
    streams = token_streams(read_documents(corpora), load_tokenizer(target_folder), held_out=False, seed=seed)
    drafted = drafted_tokens(streams)
    medusa, eagle = build_heads(target, drafted)
    optimizer, history = Optimizer(medusa, eagle), list[dict[str, float]]()
    for step in range(steps):
        tokens = draw_batch(streams, HEADS_BATCH, np.random.default_rng((seed, step)))
        medusa_loss, eagle_loss = heads_losses(target, medusa, eagle, drafted, tokens)
        torch.autograd.backward(medusa_loss + eagle_loss)
        optimizer.step(learning_rate_factor(step, steps))
        if step % 25 == 0 or step == steps - 1:
            history.append({"step": step, "medusa_loss": medusa_loss.item(), "eagle3_loss": eagle_loss.item()})
            print(history[-1], flush=True)
    save_heads(out, target, medusa, eagle, drafted)
    sizes = {name: sum(w.numel() for w in one.parameters()) for name, one in (("medusa", medusa), ("eagle3", eagle))}
    report = {"seed": seed, "steps": steps, "tokens_per_step": 8 * 192, "drafted_tokens": NUM_DRAFTED}
    written = json.dumps(report | {"parameters": sizes, "history": history}, indent=1) + "\n"
    (out / "training.json").write_text(written, encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, steps in {"pair": 1_900, "heads": 800}.items():
        command = commands.add_parser(name)
        command.add_argument("--corpora", type=Path, required=True, help="folder with one sub-folder per corpus")
        command.add_argument("--out", type=Path, required=True)
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--steps", type=int, default=steps, help="of target and draft, or of both heads, together")
        if name == "pair":
            command.add_argument("--draft-steps", type=int, default=400, help="further ones of the draft alone")
        else:
            command.add_argument("--target", dest="target_folder", type=Path, required=True)
    given = vars(parser.parse_args())
    {"pair": train_pair, "heads": train_heads}[given.pop("command")](**given)


if __name__ == "__main__":
    main()
