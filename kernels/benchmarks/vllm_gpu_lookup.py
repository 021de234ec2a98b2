"""Our n-gram lookup beside the one that vLLM runs on GPUs, kernel by kernel and without a GPU.

    make bench NAME=vllm_gpu_lookup ARGS="--sources PATH [PATH ...]"     (PATH: a folder with the package `vllm`)

vLLM's file `v1/worker/gpu/spec_decode/ngram/speculator.py` is loaded as it stands; of the package it imports only names
of types, which are replaced.  Its two kernels run in Triton's interpreter on random texts, several rows at a time in
shuffled order, and every draft is compared with that of `latest_filled`.  Nothing is timed.  A difference ends it with
exit code 1.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np
import torch

from kernels.benchmarks.harness import options, write
from shadowspec.engine.proposers.ngram import lookup
from shadowspec.types import NgramOccurrence

FILE: Final = "vllm/v1/worker/gpu/spec_decode/ngram/speculator.py"
# The names that it imports from the package, by module; they annotate and are inherited from, and nothing else.
NAMES: Final = {
    "vllm.config": ("VllmConfig",),
    "vllm.v1.worker.gpu.input_batch": ("InputBatch",),
    "vllm.v1.worker.gpu.spec_decode.speculator": ("BaseSpeculator",),
}
ROWS: Final = 8
LENGTHS: Final = (64, 300)  # max_model_len: within one block of the kernel, and over several
VOCABULARIES: Final = (2, 4, 9, 40)


def load_speculator(folder: Path) -> ModuleType:
    """The module, with Triton's interpreter in place of a GPU."""
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined
    import triton
    import triton.language as tl

    stub = ModuleType("vllm.triton_utils")
    vars(stub).update(HAS_TRITON=True, tl=tl, triton=triton)
    modules = {stub.__name__: stub}
    for name, types in NAMES.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(dict.fromkeys(types, object))
    sys.modules.update(modules)
    spec = importlib.util.spec_from_file_location("speculator", folder / FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare(module: ModuleType, draw: random.Random) -> tuple[int, int]:
    """Of the rows of one batch, how many drafts are equal, and how many copy from an occurrence."""
    count, shortest, length = draw.randint(1, 6), draw.randint(1, 4), draw.choice(LENGTHS)
    longest = shortest + draw.randint(0, 3)
    tokens = torch.zeros((ROWS, length), dtype=torch.int32)
    lengths = torch.tensor([draw.randint(1, length - 1) for _ in range(ROWS)], dtype=torch.int32)
    texts = []
    for row in range(ROWS):
        vocabulary = draw.choice(VOCABULARIES)
        texts.append(np.array([draw.randrange(vocabulary) for _ in range(int(lengths[row]))]))
        tokens[row, : len(texts[row])] = torch.from_numpy(texts[row])
    settings: Any = SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=shortest, prompt_lookup_max=longest, num_speculative_tokens=count
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=ROWS),
        model_config=SimpleNamespace(max_model_len=length),
    )
    states = SimpleNamespace(all_token_ids=SimpleNamespace(gpu=tokens), total_len=SimpleNamespace(gpu=lengths))
    order = draw.sample(range(ROWS), ROWS)
    batch = SimpleNamespace(num_reqs=ROWS, idx_mapping=torch.tensor(order))
    last = torch.tensor([int(text[-1]) for text in texts])
    proposer = module.NgramGPUSpeculator(settings, torch.device("cpu"), states)
    sampled = torch.ones(ROWS, dtype=torch.int32)
    drafts = proposer.propose(batch, None, None, None, None, sampled, None, last, None, None, None).tolist()
    ours = [lookup(texts[row], shortest, longest, count, NgramOccurrence.LATEST_FILLED).tolist() for row in order]
    num_copied = sum(len(lookup(texts[row], shortest, longest, count)) > 0 for row in order)
    return sum(draft == our for draft, our in zip(drafts, ours, strict=True)), num_copied


def main() -> None:
    """Compare with each version, and write how many drafts were equal."""
    parser = options(__doc__, "vllm_gpu_lookup.json")
    parser.add_argument("--sources", type=Path, nargs="+", required=True, help="folders with the package vllm")
    parser.add_argument("--batches", type=int, default=120, help=f"of {ROWS} random texts each")
    arguments = parser.parse_args()
    found = []
    for folder in arguments.sources:
        version = re.search(r"version = '([^']+)'", (folder / "vllm" / "_version.py").read_text(encoding="utf-8"))
        module, draw = load_speculator(folder), random.Random(7)  # noqa: S311
        results = [compare(module, draw) for _ in range(arguments.batches)]
        equal, copied = map(sum, zip(*results, strict=True))
        row = {"vllm": version[1] if version else "unknown", "texts": ROWS * arguments.batches}
        found.append(row | {"equal": equal, "with_an_occurrence": copied})
    write(arguments.out, {"versions": found})
    sys.exit(any(row["equal"] != row["texts"] for row in found))


if __name__ == "__main__":
    main()
