"""A folder of Hugging Face weights as a GGUF file in float32, by llama.cpp's own converter.

    python kernels/benchmarks/engines/llamacpp/convert.py --source PATH/llama.cpp FOLDER FILE.gguf

The converter knows tokenizers by a digest of how they split a text, and refuses one that it does not know, as the
bundled pair's.  Here it is told a splitter by name (GPT-2's): requests are token ids, so that nothing is ever split by
it, and the pieces of the tokens are the tokenizer's own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

SPLITTER = "gpt-2"


def convert(source: Path, folder: Path, file: Path) -> None:
    """Write `file` from the weights in `folder`; `source` is where llama.cpp's sources are.

    Raises:
        SystemExit: no sources are there.
    """
    if not (source / "conversion").is_dir():
        raise SystemExit(f"{source} holds no sources of llama.cpp (no folder `conversion`)")
    sys.path[:0] = [str(source / "gguf-py"), str(source)]
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    hparams = ModelBase.load_hparams(folder, False)
    known: Any = get_model_class(get_model_architecture(hparams, ModelType.TEXT))

    class Named(known):  # type: ignore[misc]
        """The same architecture with its tokenizer's splitter named."""

        model_arch = known.model_arch

        def get_vocab_base_pre(self, tokenizer: Any) -> str:
            """Instead of the digest."""
            return SPLITTER

    Named(folder, gguf.LlamaFileType.ALL_F32, file).write()


def main() -> None:
    """Convert one folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="llama.cpp's sources")
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    convert(arguments.source, arguments.folder, arguments.file)


if __name__ == "__main__":
    main()
