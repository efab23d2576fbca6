"""The policy: one quantised base model that carries several LoRA adapters.

What this file decides: how a model is loaded (NF4 by default, on CUDA and on a CPU), which adapter
is active and which one is trainable, and which weights decode. Policy, reference and reward model
are three named adapters on one base; there is never a second copy of the model but the merged one
that decodes (decoding.py), where it fits.
"""

import contextlib
import hashlib
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

POLICY, REFERENCE, REWARD_MODEL = "policy", "reference", "reward_model"
ACTIVATION_BYTES = 2 << 30
MERGED_BYTES = 4 << 30  # the largest merged copy that is made for decoding
MICRO = Path(__file__).parent / "micro" / "model"


class Policy:
    """A causal language model with LoRA adapters on a frozen, usually 4-bit, base.

    `model` is the PEFT model, `tokenizer` its tokenizer, `bits` 4, 8 or 16 (16: not quantised),
    `dtype` the dtype of the arithmetic. Build one with `load_policy`.
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
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.bits = bits
        self.dtype = dtype
        self.stop_ids = stop_ids(tokenizer, model.generation_config)
        self.decoding = decoding
        if decoding == "auto":  # from the model's shape alone, so that a resumed run chooses alike
            self.decoding = "merged" if self.merged_bytes() <= MERGED_BYTES else "layers"
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

    def tokens_per_forward(self, most: int = 4096) -> int:
        """How many tokens (padding included) a forward with backward may hold at a time.

        At most `most`, and for larger models as many as keep their activations within 2 GiB: about
        16 hidden and 3 MLP widths a token and layer. It follows from the model's configuration
        alone, never from the memory that happens to be free.
        """
        config = self.model.config
        width = 16 * config.hidden_size + 3 * getattr(config, "intermediate_size", 0)
        per_token = self.dtype.itemsize * config.num_hidden_layers * width
        return max(1, min(most, ACTIVATION_BYTES // per_token))

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

    def encode_prompt(self, prompt: str) -> list[int]:
        """Token ids of one user turn in the model's chat template, ready for the answer."""
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        # The template writes the special tokens itself; adding more would double the BOS.
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer, without its stop token."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def describe(self) -> dict[str, Any]:
        """What was loaded, for `run.json` and for people."""
        trainable = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        total = sum(p.numel() for p in self.model.get_base_model().parameters())
        return {
            "model": self.name,
            "bits": self.bits,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "trainable_parameters": trainable,
            "parameters_in_memory": total,
            "stop_ids": sorted(self.stop_ids),
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
    from peft.utils.integrations import dequantize_module_weight

    return dequantize_module_weight(layer).to(dtype)


# ---- loading -----------------------------------------------------------------------------------


def load_policy(
    model: str | Path = "micro",
    *,
    bits: int = 4,
    rank: int = 16,
    alpha: int = 32,
    seed: int = 0,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    decoding: Literal["auto", "merged", "layers"] = "auto",
) -> Policy:
    """Load a base model in 4 bits (NF4), 8 bits or unquantised (16), with one trainable adapter.

    `model` is "micro" (the embedded model), a local Hugging Face folder, a `.gguf` file or a Hub
    id. The adapter is fresh (its B is 0, so the policy starts as the base model), its rank, alpha
    and seed as given; all linear layers carry it. `decoding` chooses what samples: a merged copy of
    the weights (fast, see `Policy.merged_bytes`) or the adapted layers (no extra memory); "auto" is
    the copy up to 4 GiB. Raises ValueError, with the remedy, for a model
    without chat template or an impossible setting.
    """
    if bits not in (4, 8, 16):
        raise ValueError(f"--bits {bits} is not possible; choose 4, 8 or 16 (16: not quantised)")
    quiet_libraries()  # before the imports: bitsandbytes speaks while it is imported
    source = model_source(model)
    with clear_faults(model):
        return _load(model, source, bits, rank, alpha, seed, device, dtype, decoding)


@contextlib.contextmanager
def clear_faults(model: str | Path) -> Iterator[None]:
    """Turn what the libraries raise for an unusable model into one ValueError that names it."""
    try:
        yield
    except (ValueError, KeyboardInterrupt):
        raise
    except Exception as error:
        kind = type(error).__name__
        raise ValueError(
            f"{model} cannot be loaded ({kind}: {error}); give a complete causal language model "
            "with a working chat template"
        ) from error


def _load(model, source, bits, rank, alpha, seed, device, dtype, decoding) -> Policy:
    """What `load_policy` does once its arguments are known to be possible."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from cascade_kit.attention import register
    from cascade_kit.lora import use_adapted_forward

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or default_dtype(device)
    # A local folder is named by its last part: a path means nothing on another machine.
    name = Path(model).name if Path(source).is_dir() else str(model)
    tokenizer = AutoTokenizer.from_pretrained(source)
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            f"{name} has no chat template, so it cannot be asked anything; choose an instruct "
            "model, or put a chat_template.jinja into the model folder"
        )
    base = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=dtype,
        device_map={"": device},
        attn_implementation=register(),
        quantization_config=quantisation(bits, device, dtype),
    )
    base.config.use_cache = False  # rollouts ask for the cache themselves
    for layer in base.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            # bitsandbytes' CPU fast path repacks the weights at the first forward in eval mode
            # and from then on returns no gradient through the layer, without a warning.
            layer.support_avx512bf16_for_cpu = False
    base.requires_grad_(False)
    torch.manual_seed(seed)  # the random A of the adapter
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,  # dropout would make the policy that is scored another than the sampled
        bias="none",
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(base, config, adapter_name=POLICY)
    adapted.train()
    use_adapted_forward([layer for _, layer in lora_layers(adapted)])
    policy = Policy(adapted, tokenizer, name=name, bits=bits, dtype=dtype, decoding=decoding)
    policy.encode_prompt("Hello")  # a broken template shows here, before any work
    return policy


def model_source(model: str | Path) -> str:
    """What transformers loads for a model name; checks local paths before any long work."""
    if str(model) == "micro":
        return str(MICRO)
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        from cascade_kit.gguf import converted

        return str(converted(path))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"{path} holds no config.json; name a Hugging Face model folder")
        return str(path)
    if path.exists() or str(model).startswith((".", "/", "~")) or str(model).count("/") > 1:
        raise ValueError(
            f"no model at {model}: give 'micro', a Hugging Face model folder, a .gguf file or a "
            "Hub id such as Qwen/Qwen2.5-0.5B-Instruct"
        )
    return str(model)


def quantisation(bits: int, device: str, dtype: torch.dtype) -> Any:
    """The bitsandbytes configuration for a number of bits; None for 16."""
    from transformers import BitsAndBytesConfig

    if bits == 16:
        return None
    if bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        # Quantised scales save 0.4 bits a weight where memory is scarce; on the CPU the exact
        # scales keep `micro`, whose weights lie on the NF4 grid, the same function as in 32 bits.
        bnb_4bit_use_double_quant=device.startswith("cuda"),
        bnb_4bit_compute_dtype=dtype,
    )


def default_dtype(device: str) -> torch.dtype:
    """float32 on a CPU, bfloat16 from Ampere on, float16 on older GPUs (a T4 has no bfloat16)."""
    if not device.startswith("cuda"):
        return torch.float32
    major, _ = torch.cuda.get_device_capability()
    return torch.bfloat16 if major >= 8 else torch.float16


def quiet_libraries() -> None:
    """Keep the libraries' progress bars and per-call messages out of the log."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    for message in (".*past_key_values.*", ".*gradient_checkpointing.*"):  # renamed in 5.24
        warnings.filterwarnings("ignore", message=message, category=FutureWarning)
