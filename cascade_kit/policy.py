"""The policy: one quantised base model that carries several LoRA adapters.

What this file decides: which adapter is active and which one is trainable, and which weights
decode; how a model is loaded stands in loading.py. Policy, reference and reward model
are three named adapters on one base; there is never a second copy of the model but the merged one
that decodes (decoding.py), where it fits.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from cascade_kit import budgets
from cascade_kit.chat import OWN, read_chat, user
from cascade_kit.loss_scale import LossScale
from cascade_kit.verifiers.thinking import CLOSE, OPEN

POLICY, REFERENCE, REWARD_MODEL = "policy", "reference", "reward_model"


class Policy:
    """A causal language model with LoRA adapters on a frozen, usually 4-bit, base.

    `model` is the PEFT model, `tokenizer` its tokenizer, `bits` 4, 8 or 16 (16: not quantised),
    `dtype` the dtype of the arithmetic. Build one with `loading.load_policy`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        bits: int,
        dtype: torch.dtype,
        decoding: Literal["auto", "merged", "layers"] = "auto",
        template: str = OWN,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.bits = bits
        self.dtype = dtype
        self.chat = read_chat(tokenizer, template)
        self.stop_ids = stop_ids(tokenizer, model.generation_config) | self.chat.turn_ends
        self.loss_scale = LossScale(dtype)
        self.decoding = decoding
        if decoding == "auto":  # from the model's shape alone, so that a resumed run chooses alike
            fits = self.merged_bytes() <= budgets.largest_merged(dtype)
            self.decoding = "merged" if fits else "layers"
        self.merged: Any = None  # the decoding weights, see decoding.py

    # ---- what the model is -------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def backbone(self) -> nn.Module:
        """The transformer without its head: ids (B, T) -> hidden states (B, T, H)."""
        return self.model.get_base_model().base_model

    @property
    def head(self) -> nn.Module:
        """Hidden states (..., H) -> logits (..., V)."""
        return self.model.get_base_model().get_output_embeddings()

    @property
    def attention(self) -> str:
        """transformers' name of the attention that runs."""
        return self.model.get_base_model().config._attn_implementation

    def merged_bytes(self) -> int:
        """Memory of a merged copy for decoding: its linear weights, the rest is shared."""
        layers = (layer for _, layer in lora_layers(self.model.get_base_model()))
        return self.dtype.itemsize * sum(la.in_features * la.out_features for la in layers)

    @property
    def max_positions(self) -> int:
        """Tokens a prompt and its answer may have together.

        A model with sliding-window layers is used within its window only: the rollouts bring their
        own attention mask, which knows no window.
        """
        config = self.model.config
        window = getattr(config, "sliding_window", None)
        if window and getattr(config, "use_sliding_window", True):
            return min(window, config.max_position_embeddings)
        return config.max_position_embeddings

    def tokens_per_forward(self) -> int:
        """How many tokens (padding included) a forward with backward may hold at a time."""
        linear = self.merged_bytes() // self.dtype.itemsize
        return budgets.tokens_per_forward(self.model.config, self.dtype, linear)

    @contextlib.contextmanager
    def recomputing(self, needed: bool) -> Iterator[None]:
        """Recompute activations in the backward, layer by layer, where a row alone is too long."""
        base = self.model.get_base_model()
        if needed:
            base.gradient_checkpointing_enable({"use_reentrant": False})
        try:
            yield
        finally:
            if needed:
                base.gradient_checkpointing_disable()

    def encode_prompt(
        self,
        prompt: str,
        examples: Sequence[tuple[str, str]] = (),
        thinking: bool | None = None,
    ) -> list[int]:
        """Token ids of one user turn in the model's chat template, ready for the answer.

        `examples` are (user, assistant) turns that stand before it; `thinking` switches the model's
        thinking on or off, None leaves it to the template. Raises ValueError where no switch is.
        """
        dialogue = []
        for question, answer in examples:
            dialogue += [user(question), {"role": "assistant", "content": answer}]
        return self.chat.encode([*dialogue, user(prompt)], thinking)

    def prompt_tokens(self, prompt: str, examples: Sequence[tuple[str, str]] = ()) -> int:
        """The most tokens that a prompt takes, whatever the mode of thinking."""
        return max(len(self.encode_prompt(prompt, examples, mode)) for mode in self.chat.modes)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer, without special tokens but for the tags of a thought."""
        special = set(self.tokenizer.all_special_ids)
        tags = special & set(self.tokenizer.convert_tokens_to_ids([OPEN, CLOSE]))
        if not tags & set(ids):
            return self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return self.tokenizer.decode([i for i in ids if i not in special - tags])

    def describe(self) -> dict[str, Any]:
        """What was loaded, for `run.json` and for people."""
        trainable = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        total = sum(p.numel() for p in self.model.get_base_model().parameters())
        return {
            "model": self.name,
            "bits": self.bits,
            "weights": "not quantised" if self.bits == 16 else f"{self.bits} bits",
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "trainable_parameters": trainable,
            "parameters_in_memory": total,
            "stop_ids": sorted(self.stop_ids),
            "stop_tokens": self.tokenizer.convert_ids_to_tokens(sorted(self.stop_ids)),
            "chat": self.chat.describe(),
            "decoding": f"merged copy, {self.merged_bytes() / 2**20:.0f} MiB"
            if self.decoding == "merged"
            else "through the adapted layers",
        }

    # ---- adapters ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def using(self, adapter: str, *, train: bool = False) -> Iterator[None]:
        """Run with another adapter active; the one way to switch adapters.

        Inside, exactly one adapter is trainable: the one that was before, or `adapter` with
        `train=True`. peft's own `set_adapter` would make the reference trainable and freeze the
        policy, silently. Afterwards the active adapter and every `requires_grad` are as before.
        """
        if adapter not in self.model.peft_config:
            known = ", ".join(self.model.peft_config)
            raise ValueError(f"no adapter named {adapter!r}; this policy has {known}")
        previous = self.model.active_adapter
        flags = [(p, p.requires_grad) for p in self.model.parameters()]
        try:
            self.model.set_adapter(adapter, inference_mode=not train)
            if not train:
                _restore(flags)
            yield
        finally:
            self.model.set_adapter(previous, inference_mode=True)
            _restore(flags)

    def adapter_parameters(self, adapter: str) -> dict[str, nn.Parameter]:
        """The LoRA parameters of one adapter by name, in a fixed order."""
        marker = f".{adapter}."
        return {n: p for n, p in self.model.named_parameters() if marker in n and "lora_" in n}

    def add_adapter(self, adapter: str, *, copy_of: str | None = None) -> None:
        """Add a frozen adapter: fresh (B = 0), or a copy of another one's weights."""
        import copy

        if adapter not in self.model.peft_config:
            config = copy.deepcopy(self.model.peft_config[POLICY])
            previous = self.model.active_adapter
            flags = {id(p): p.requires_grad for p in self.model.parameters()}
            self.model.add_adapter(adapter, config)
            self.model.set_adapter(previous, inference_mode=True)
            for p in self.model.parameters():  # peft leaves the new adapter's state undefined
                p.requires_grad_(flags.get(id(p), False))
        if copy_of is not None:
            source = self.adapter_parameters(copy_of)
            with torch.no_grad():
                for name, parameter in self.adapter_parameters(adapter).items():
                    parameter.copy_(source[name.replace(f".{adapter}.", f".{copy_of}.")])

    def remove_adapter(self, adapter: str) -> None:
        """Free an adapter that is neither the policy nor active."""
        flags = [(p, p.requires_grad) for p in self.model.parameters()]
        self.model.delete_adapter(adapter)
        _restore(flags)

    def adapter_hash(self, adapter: str = POLICY) -> str:
        """A hash of an adapter's weights: equal hashes mean byte-equal adapters."""
        digest = hashlib.sha256()
        for name, parameter in self.adapter_parameters(adapter).items():
            digest.update(name.replace(f".{adapter}.", ".").encode())
            digest.update(parameter.detach().to("cpu", torch.float32).numpy().tobytes())
        return digest.hexdigest()[:16]

    def save_adapter(self, folder: Path, adapter: str = POLICY) -> None:
        """Write an adapter as an ordinary PEFT folder that plain `peft` loads."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        state = get_peft_model_state_dict(self.model, adapter_name=adapter)
        state = {k: v.detach().to("cpu").contiguous().clone() for k, v in state.items()}
        weights = folder / "adapter_model.safetensors"
        save_file(state, weights.with_suffix(".partial"), metadata={"format": "pt"})
        weights.with_suffix(".partial").replace(weights)
        config = self.model.peft_config[adapter].to_dict()
        # peft stores the path the base was loaded from, which means nothing on another machine.
        config |= {"base_model_name_or_path": self.name, "inference_mode": True}
        config["target_modules"] = sorted(config["target_modules"])
        text = json.dumps(config, indent=1, sort_keys=True, default=_json_value)
        (folder / "adapter_config.json").write_text(text + "\n")

    def load_adapter(self, folder: Path, adapter: str = POLICY) -> None:
        """Replace an existing adapter's weights by those of a PEFT folder of the same shape."""
        from safetensors.torch import load_file

        path = folder / "adapter_model.safetensors"
        if not path.is_file():
            raise ValueError(f"{folder} holds no adapter_model.safetensors; name an adapter folder")
        stored = load_file(path)
        wanted = self.adapter_parameters(adapter)
        named = {name.replace(f".{adapter}.", "."): p for name, p in wanted.items()}
        if stored.keys() != named.keys() or any(stored[k].shape != named[k].shape for k in stored):
            raise ValueError(
                f"the adapter in {folder} does not fit this policy (other rank, other layers or "
                "another base model); load the policy with the settings the adapter was made with"
            )
        with torch.no_grad():
            for name, parameter in named.items():
                parameter.copy_(stored[name])

    def close(self) -> None:
        """Drop the model so that its memory can be reused in the same process."""
        import gc

        self.model = self.merged = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _restore(flags: list[tuple[nn.Parameter, bool]]) -> None:
    for parameter, flag in flags:
        parameter.requires_grad_(flag)


def _json_value(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else str(value)


def stop_ids(tokenizer: Any, generation_config: Any) -> frozenset[int]:
    """Ids that end an answer: the union of the tokenizer's and the generation config's."""
    found: set[int] = set()
    for source in (tokenizer.eos_token_id, getattr(generation_config, "eos_token_id", None)):
        if source is not None:
            found.update([source] if isinstance(source, int) else source)
    if not found:
        raise ValueError(
            "neither the tokenizer nor the generation config names an end-of-turn token; set "
            "tokenizer.eos_token in the model folder"
        )
    return frozenset(found)


def lora_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """(name, layer) of every linear layer that carries LoRA adapters."""
    from peft.tuners.lora import LoraLayer

    return [(n, m) for n, m in model.named_modules() if isinstance(m, LoraLayer)]


def base_weight(layer: nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """The weight (out, in) that a frozen linear layer really multiplies with."""
    from peft.utils.integrations import dequantize_bnb_weight, get_bnb_param_type

    weight = layer.weight
    if get_bnb_param_type(weight):
        # Not dequantize_module_weight: on a CPU it replaces the layer's parameter, and int8 layers
        # lose their scales with it.
        weight = dequantize_bnb_weight(weight, state=getattr(layer, "state", None))
    return weight.to(dtype)
