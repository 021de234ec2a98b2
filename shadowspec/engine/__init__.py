"""The in-process engine: paired propose-and-verify runs on one device. Only this package and the kernels import torch.

In: blocks of prompts, models and candidates.
Out: runs with counts, timings, parity and memory.
Imports: quality, metrics, model_folder, types, errors, shadowspec_kernels.

Here the extra `engine` begins: without it, importing the package says how to install it.  The first name that is used
loads torch and transformers; `device` and `ordinary` load less.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from shadowspec.types.extras import ENGINE, require_extra

require_extra("the engine in this process", ENGINE)

if TYPE_CHECKING:
    from shadowspec.engine.candidate import Candidate, Models, engine_name
    from shadowspec.engine.measure import Engine
    from shadowspec.engine.models import LoadedModel
    from shadowspec.engine.tokenizer import FolderTokenizer, load_tokenizer
else:
    _MODULES = {
        "Candidate": "candidate",
        "Engine": "measure",
        "FolderTokenizer": "tokenizer",
        "LoadedModel": "models",
        "Models": "candidate",
        "engine_name": "candidate",
        "load_tokenizer": "tokenizer",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


__all__ = ["Candidate", "Engine", "FolderTokenizer", "LoadedModel", "Models", "engine_name", "load_tokenizer"]
