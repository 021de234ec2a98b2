"""A model folder seen from its files: whether it can hold a model, its settings, its digests and its tokenizer.

In: a folder's path.
Out: refusals with their remedies, stated settings, digests, token ids of prompts.
Imports: types, errors.

Nothing here imports torch or transformers; a tokenizer's libraries are loaded with `plain_tokenizer`.
"""

from shadowspec.model_folder.folder_files import (
    AGAIN,
    GENERATION,
    config_digest,
    download_remedy,
    read_object,
    require_model_folder,
    require_settings,
    require_tokenizer,
    require_weights,
    stated_sampling,
    tokenizer_digest,
    weights_digest,
)
from shadowspec.model_folder.target_tokenizer import TargetTokenizer

__all__ = [
    "AGAIN",
    "GENERATION",
    "TargetTokenizer",
    "config_digest",
    "download_remedy",
    "read_object",
    "require_model_folder",
    "require_settings",
    "require_tokenizer",
    "require_weights",
    "stated_sampling",
    "tokenizer_digest",
    "weights_digest",
]
