"""A pair that takes no time and documents that need no corpora."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kernels.benchmarks.bundled_pair import (
    API_PROMPT,
    SQL,
    STORY_PROMPT,
    Document,
    Turn,
    sql_schema,
    train_tokenizer,
)
from shadowspec import demo

SMALL = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64}
SMALL |= {"num_attention_heads": 1, "num_key_value_heads": 1}
NAMES = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jade", "kelp", "lotus")


def _code(index: int) -> Document:
    lines = ["import os", ""]
    for number in range(6):
        name = f"{NAMES[(index + number) % 12]}_{number}"
        lines += [f"def {name}(first, second):", f"    total = first + {index * 100 + number}"]
        lines += [f"    {NAMES[step % 12]}_{step + index} = total * {step} + second - {number}" for step in range(30)]
        lines += ["    return total", ""]
    return Document("code", f"file_{index}.py", True, text="\n".join(lines))


def _sql() -> list[Document]:
    rng = random.Random(5)
    return [
        Document("sql", f"schema-{index}", True, turns=(Turn(f"{schema}\n\nQuestion: {question}", query),))
        for index, (schema, questions) in enumerate(sql_schema(rng, SQL["tables"]["held_out"]) for _ in range(30))
        for question, query in questions.items()
    ]


def _turns(domain: str, index: int) -> Turn:
    name, other = NAMES[index % 12], NAMES[(index * 7 + 3) % 12]
    if domain == "json":
        return Turn(f"{API_PROMPT}\nName: {name} {index}\nPurpose: Reads the {other} number {index}.", "{}")
    if domain == "maths":
        return Turn(
            f"{name} has {index} apples and buys {index + 2}. How many apples are there?",
            f"There are {2 * index + 2} in all. #### {2 * index + 2}",
        )
    if domain == "prose":
        return Turn(f"{STORY_PROMPT}\n\nThe {name} of {index} winters walked to the {other} and", "sat down there.")
    return Turn(f"Translate to German:\nthe {name} {index} is not a {other}", f"{name} {index} ist kein {other}")


@pytest.fixture(scope="session")
def held_out() -> list[Document]:
    """Held-out documents of every domain."""
    documents = [_code(index) for index in range(4)] + _sql()
    for domain, groups in (("json", "api:{}"), ("maths", "test:{}"), ("prose", "book"), ("translation", "de:{}")):
        documents += [
            Document(domain, groups.format(index), True, turns=(_turns(domain, index),)) for index in range(60)
        ]
    return documents


@pytest.fixture(scope="session")
def pair_folder(held_out: Sequence[Document], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random models of the pair's architecture, with a tokenizer trained on the documents."""
    folder = tmp_path_factory.mktemp("pair")
    tokenizer = train_tokenizer(list(held_out), np.random.default_rng(0))
    for name, seed in (("target", 1), ("draft", 2)):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig.from_pretrained(demo.TARGET, dtype=None, **SMALL))
        with torch.no_grad():  # fresh weights answer every prompt with its own last token
            for parameter_name, parameter in model.named_parameters():
                parameter.mul_(25.0 if "proj" in parameter_name else 4.0 if "embed" in parameter_name else 1.0)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder
