"""The in-process engine: paired propose-and-verify runs on one device. Torch lives here and in the kernels.

In: blocks of prompts, models and candidates.
Out: runs with counts, timings, parity and memory.
Imports: quality, metrics, types, errors, shadowspec_kernels.
"""

from shadowspec.engine.candidate import Candidate, Models, engine_name
from shadowspec.engine.measure import Engine
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.tokenizer import FolderTokenizer, load_tokenizer

__all__ = ["Candidate", "Engine", "FolderTokenizer", "LoadedModel", "Models", "engine_name", "load_tokenizer"]
