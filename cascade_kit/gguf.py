"""A `.gguf` file becomes an ordinary model folder, once.

transformers refuses GGUF together with bitsandbytes, so the file is dequantised, saved to a cache
folder that the file's hash names, and loaded from there in 4 bits like any other model.
"""

import hashlib
import os
import shutil
from pathlib import Path

from cascade_kit import settings


def converted(path: Path) -> Path:
    """The model folder of a GGUF file, made on first use. ValueError if it cannot be read."""
    if not path.is_file():
        raise ValueError(f"no file at {path}; give the path of a .gguf file")
    folder = settings.cache_folder() / "gguf" / f"{path.stem}-{file_hash(path)[:16]}"
    if not folder.exists():
        convert(path, folder)
    return folder


def convert(path: Path, folder: Path) -> None:
    """Write the folder beside its final place first, so that a broken one is never found."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        import gguf  # noqa: F401  transformers needs it and says so only deep inside
    except ImportError:
        raise ValueError("reading .gguf files needs the gguf package: pip install gguf") from None
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    source, name = str(path.resolve().parent), path.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=name, dtype=torch.float32, **dense_loading(name)
        )
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(f"{path} cannot be read as a GGUF model: {error}") from error
    partial.mkdir(parents=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    try:
        partial.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(partial)


def dense_loading(name: str) -> dict:
    """Arguments that unpack all weights; older transformers do so without being asked."""
    try:
        from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(gguf_file=name, dequantize=True)}


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
