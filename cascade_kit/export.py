"""Export: what a run made, in folders that plain peft and transformers load, with a model card.

The adapter was trained on the 4-bit weights, so it is merged into these, dequantised: then the
merged model is the policy, up to 16-bit rounding. Merged into the original weights it would be
another model, which nobody trained or tested.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cascade_kit.cascade import START
from cascade_kit.loading import load_policy
from cascade_kit.model_card import model_card
from cascade_kit.policy import POLICY, Policy, base_weight, lora_layers

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def export(
    run: str | Path,
    out: str | Path,
    *,
    stage: str | None = None,
    merged: bool = False,
    model: str | Path | None = None,
    dtype: str = "bfloat16",
) -> Path:
    """Write the adapter of a finished stage, by default the last one, and a model card to `out`.

    `merged` adds a folder `merged/` with the whole model in `dtype`. It needs the base that the run
    was trained on: `model` says where it is, if not where the run found it. Returns the folder,
    which appears when all of it is written. Raises ValueError, before any long work, for a folder
    in use, an unknown stage, another base or too little room.
    """
    run, out = Path(run), Path(out)
    settings = run_settings(run)
    finished = finished_stages(run, settings)
    stage = chosen(stage, finished)
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not possible; choose from {', '.join(DTYPES)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists; choose another folder to export to")
    partial = out.with_name(f"{out.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    try:
        for name in ADAPTER_FILES:
            shutil.copyfile(finished[stage] / "adapter" / name, partial / name)
        if merged:
            policy = run_policy(settings, finished[stage] / "adapter", model, DTYPES[dtype])
            write_merged(policy, partial / "merged", DTYPES[dtype])
            policy.close()
        card = model_card(run, settings, list(finished), stage, dtype if merged else None)
        (partial / "README.md").write_text(card, encoding="utf-8")
        if out.exists():
            out.rmdir()  # empty, as was seen above
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return out


def run_settings(run: Path) -> dict[str, Any]:
    """The run's settings; ValueError for a folder that is no run."""
    path = run / "run.json"
    if not path.is_file():
        raise ValueError(f"{run} holds no run.json; name the folder of a run")
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error})") from error


def finished_stages(run: Path, settings: Mapping[str, Any]) -> dict[str, Path]:
    """The folders of the finished stages, in order."""
    folders = {name: run / f"{i}-{name}" for i, name in enumerate(settings["order"], start=1)}
    return {n: f for n, f in folders.items() if (f / "adapter" / ADAPTER_FILES[0]).is_file()}


def chosen(stage: str | None, finished: Mapping[str, Path]) -> str:
    if not finished:
        raise ValueError("no stage of this run is finished, so there is nothing to export yet")
    if stage is None:
        return list(finished)[-1]
    if stage not in finished:
        why = "is the start, which has no adapter of its own" if stage == START else "is not one"
        raise ValueError(f"stage {stage!r} {why}; finished are {', '.join(finished)}")
    return stage


def run_policy(
    settings: Mapping[str, Any], adapter: Path, model: str | Path | None, dtype: torch.dtype
) -> Policy:
    """The policy of a stage on the base that the run used; ValueError if it is another base."""
    config = json.loads((adapter / ADAPTER_FILES[0]).read_text(encoding="utf-8"))
    made = settings["policy"]
    try:
        policy = load_policy(
            model or settings["model"],
            bits=made["bits"],
            rank=config["r"],
            alpha=config["lora_alpha"],
            # On the CPU a 16-bit arithmetic is slow, and only weights are computed here.
            dtype=dtype if made["device"] != "cpu" else torch.float32,
            decoding="layers",
        )
    except (ValueError, OSError) as error:
        if model is not None:
            raise
        raise ValueError(
            f"the run's base model {settings['model']!r} cannot be loaded by that name ({error}); "
            "say where it is: --model PATH"
        ) from error
    now = policy.describe()
    for key in ("parameters_in_memory", "trainable_parameters"):
        if now[key] != made[key]:
            raise ValueError(
                f"{model or settings['model']} is not the base of this run ({key}: {now[key]:,} "
                f"instead of {made[key]:,}); name the model that the run was started with"
            )
    policy.load_adapter(adapter)
    return policy


def write_merged(policy: Policy, folder: Path, dtype: torch.dtype) -> None:
    """Write a policy as an ordinary model folder; one layer at a time is held in float32."""
    import copy

    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    base = policy.model.get_base_model()
    state = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in base.state_dict().items()
        if "lora_" not in name and ".base_layer." not in name
    }
    for name, layer in lora_layers(base):
        weight = base_weight(layer.get_base_layer(), torch.float32)
        weight = weight + layer.get_delta_weight(POLICY).float()
        state[f"{name}.weight"] = weight.to("cpu", dtype)
        if layer.get_base_layer().bias is not None:
            state[f"{name}.bias"] = layer.get_base_layer().bias.detach().to("cpu", dtype)
    check_room(folder.parent, sum(t.numel() * t.element_size() for t in state.values()))
    config = copy.deepcopy(base.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype, config.use_cache = dtype, True
    # Plain transformers has attention of its own.
    with init_empty_weights(include_buffers=False):
        plain = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)
    plain.load_state_dict({k: v for k, v in state.items() if k in plain.state_dict()}, assign=True)
    plain.tie_weights()
    plain.generation_config = copy.deepcopy(base.generation_config)
    plain.generation_config.eos_token_id = sorted(policy.stop_ids)
    plain.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < 1.05 * needed:
        raise ValueError(
            f"the merged model needs {needed / 2**30:.1f} GiB and {folder} has {free / 2**30:.1f} "
            "GiB free; make room, or choose another disk with --out"
        )
