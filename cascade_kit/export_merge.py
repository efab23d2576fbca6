"""A whole model out of an adapter and its base: dequantise(the very 4-bit weights) + B.A.scale.

The adapter was trained on the quantised base, so that is what it is merged into. Merged into the
original 16-bit weights it would be another function than the one that was trained and tested:
the two bases differ by the rounding of the quantisation, which the adapter has learnt with.

The base is loaded in the run's bits and dtype, and one layer at a time leaves it in 16 bits: the
memory is that of the quantised base and of one file of at most `SHARD_BYTES`. A base in 8 bits
(int8) also quantises activations, so there the merged model is close to the policy and not equal.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from cascade_kit.chat import read_chat
from cascade_kit.loading import clear_faults, model_source, quantisation, quiet_libraries
from cascade_kit.policy import base_weight, stop_ids
from cascade_kit.run_files import write_json

SHARD_BYTES = 1 << 30
ROOM = 1.05  # disk space asked for, over that of the weights: tokenizer, index, file headers
PREFIX = "base_model.model."  # of every name in a PEFT file


def base_source(name: str, model: Path | str | None) -> str:
    """What transformers loads as the base; `name` is how the run calls it.

    ValueError if the run used something local and nobody says where it lies.
    """
    if model is not None:
        return model_source(model)
    if name != "micro" and "/" not in name:
        # `load_policy` keeps of a local folder its last part; a GGUF file may have been anywhere.
        raise ValueError(f"the run's base was the local model {name}; say where it is by --model")
    return model_source(name)


def check_fits(adapter: Path, source: str) -> None:
    """Raise ValueError if an adapter was not made on a model of this shape; loads no weights.

    The run's adapters carry every linear layer, so names and shapes must all agree. A fine-tuned
    version of the same base has the same shape, and passes.
    """
    from safetensors import safe_open

    model = empty_model(source)
    with safe_open(adapter / "adapter_model.safetensors", framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    made_on = {
        name.removeprefix(PREFIX).removesuffix(".lora_A.weight"): (
            shapes[name.replace("lora_A", "lora_B")][0],
            shape[1],
        )
        for name, shape in shapes.items()
        if ".lora_A." in name
    }
    head = model.get_output_embeddings()
    found = {
        name: (layer.out_features, layer.in_features)
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and layer is not head
    }
    if made_on != found:
        odd = sorted(n for n in {**made_on, **found} if made_on.get(n) != found.get(n))[0]
        raise ValueError(
            f"the adapter in {adapter} was made on another base model than {source}: {odd} is "
            f"{made_on.get(odd, 'absent')} in the one and {found.get(odd, 'absent')} in the other; "
            "give the run's base as --model"
        )


def empty_model(source: str) -> Any:
    """A model without weights, to read names and shapes from."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    quiet_libraries()
    with clear_faults(source), init_empty_weights():
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))


def write_merged(
    trained: Mapping[str, Any], adapter: Path, source: str, folder: Path, dtype: str = "auto"
) -> str:
    """Write the merged model folder; `trained` is `policy` of run.json. Returns its dtype's name.

    Config, tokenizer with chat template and generation config come along; the generation config
    names every id that ended an answer in training.
    """
    from transformers import AutoTokenizer

    auto = trained["dtype"] if trained["dtype"] in ("float16", "bfloat16") else "bfloat16"
    precision = auto if dtype == "auto" else dtype
    if precision not in ("float16", "bfloat16", "float32"):
        raise ValueError(f"dtype {dtype!r} is not possible; choose bfloat16, float16 or float32")
    kind = getattr(torch, precision)
    plain = empty_model(source)
    names = stored_names(plain)
    check_space(folder, sum(shape.numel() for shape in names.values()) * kind.itemsize)
    tokenizer = AutoTokenizer.from_pretrained(source)
    if given := trained["chat"].get("jinja"):
        tokenizer.chat_template, tokenizer.eos_token = given, trained["chat"]["eos"]
    with clear_faults(source):
        base = load_base(source, trained)
    ends = stop_ids(tokenizer, base.generation_config) | read_chat(tokenizer).turn_ends
    if sorted(ends) != sorted(trained["stop_ids"]):
        raise ValueError(
            f"{source} ends an answer by the token ids {sorted(ends)} and the run's base did by "
            f"{trained['stop_ids']}: it is another model; give the run's base as --model"
        )
    folder.mkdir()
    write_shards(folder, merged_tensors(base, names, adapter, kind))
    config = base.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = kind
    config.save_pretrained(folder)
    base.generation_config.eos_token_id = sorted(ends)
    base.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return precision


def stored_names(plain: Any) -> dict[str, torch.Size]:
    """Name -> shape of every tensor that a model file must hold: tied weights once."""
    plain.tie_weights()
    seen: set[int] = set()
    found = {}
    for name, tensor in plain.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            found[name] = tensor.shape
        seen.add(id(tensor))
    return found


def check_space(folder: Path, size: int) -> None:
    """Raise ValueError if the disk has no room for `size` bytes of weights."""
    free, needed = shutil.disk_usage(folder.parent).free, int(size * ROOM)
    if free < needed:
        raise ValueError(
            f"the merged model takes {needed / 1e9:.2f} GB and {folder.parent.parent.resolve()} "
            f"has {free / 1e9:.2f} GB free; choose an --out on another disk, or leave out --merged"
        )


def load_base(source: str, trained: Mapping[str, Any]) -> Any:
    """The base as the run had it: the same bits, dtype and, on whatever device, scales."""
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, trained["dtype"])
    return AutoModelForCausalLM.from_pretrained(
        source,
        dtype=dtype,
        device_map={"": "cuda" if torch.cuda.is_available() else "cpu"},
        quantization_config=quantisation(trained["bits"], trained["device"], dtype),
    )


def merged_tensors(
    base: Any, names: Mapping[str, torch.Size], adapter: Path, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of the merged model, one after the other; sums are made in float32."""
    from safetensors import safe_open

    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    scale = config["lora_alpha"] / config["r"]
    with safe_open(adapter / "adapter_model.safetensors", framework="pt") as lora:
        adapted = set(lora.keys())
        for name in names:
            place, _, leaf = name.rpartition(".")
            module = base.get_submodule(place)
            key = f"{PREFIX}{place}.lora_{{}}.weight"
            if leaf == "weight" and key.format("A") in adapted:
                down, up = (lora.get_tensor(key.format(x)).float() for x in "AB")
                weight = base_weight(module, torch.float32)  # (out, in)
                tensor = weight + scale * (up @ down).to(weight.device)
            else:
                tensor = getattr(module, leaf)
            if tensor.is_floating_point():
                tensor = tensor.to(dtype)
            yield name, tensor.detach().cpu().contiguous()


def write_shards(folder: Path, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
    """Write safetensors files of at most SHARD_BYTES (or of one tensor), and their index."""
    from safetensors.torch import save_file

    shard: dict[str, torch.Tensor] = {}
    parts: list[list[str]] = []
    total = size = 0

    def put_away() -> None:
        save_file(shard, folder / f"part-{len(parts)}", metadata={"format": "pt"})
        parts.append(list(shard))
        shard.clear()

    for name, tensor in tensors:
        if shard and size + tensor.nbytes > SHARD_BYTES:
            put_away()
            size = 0
        shard[name] = tensor
        size, total = size + tensor.nbytes, total + tensor.nbytes
    put_away()
    if len(parts) == 1:
        (folder / "part-0").rename(folder / "model.safetensors")
        return
    places: dict[str, str] = {}
    for number, names in enumerate(parts):
        file = f"model-{number + 1:05}-of-{len(parts):05}.safetensors"
        (folder / f"part-{number}").rename(folder / file)
        places |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    write_json(folder / "model.safetensors.index.json", index)
