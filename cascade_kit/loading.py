"""Loading: a base model in 4, 8 or 16 bits becomes a Policy with one fresh, trainable adapter.

What this file decides: where a model comes from (embedded, folder, GGUF, Hub), in which bits and
which dtype it computes (NF4 by default, on CUDA and on a CPU), and which layers carry LoRA.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from cascade_kit.chat import set_template, template_text
from cascade_kit.policy import POLICY, Policy, lora_layers
from cascade_kit.presets import hub_id

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MICRO = Path(__file__).parent / "micro" / "model"


def load_policy(
    model: str | Path = "micro",
    *,
    bits: int = 4,
    rank: int = 16,
    alpha: int = 32,
    seed: int = 0,
    device: str | None = None,
    dtype: Dtype | torch.dtype | None = None,
    decoding: Literal["auto", "merged", "layers"] = "auto",
    chat_template: str | None = None,
) -> Policy:
    """Load a base model in 4 bits (NF4), 8 bits or unquantised (16), with one trainable adapter.

    `model` is "micro" (the embedded model), a local Hugging Face folder, a `.gguf` file, a Hub id
    or the short name of one (presets.json). The adapter is fresh (its B is 0, so the policy starts
    as the base model), its rank, alpha and seed as given; all linear layers carry it. `decoding`
    chooses what samples: a merged copy of the weights (fast, see `Policy.merged_bytes`) or the
    adapted layers (no extra memory); "auto" is the copy up to 4 GiB, in 16 bits up to 1 GiB. The
    arithmetic is done in `dtype`, by default the one that suits the device (`default_dtype`); LoRA
    weights and log-probabilities are float32 in any case.
    `chat_template` is "plain", "chatml" or a Jinja file, for a base model that has none.

    Raises ValueError, with the remedy, for a model without chat template, a missing library or an
    impossible setting.
    """
    if bits not in (4, 8, 16):
        raise ValueError(f"--bits {bits} is not possible; choose 4, 8 or 16 (16: not quantised)")
    if isinstance(dtype, str) and dtype not in DTYPES:
        raise ValueError(f"--dtype {dtype} is not possible; choose one of {', '.join(DTYPES)}")
    quiet_libraries()  # before the imports: bitsandbytes speaks while it is imported
    if bits != 16:
        check_bitsandbytes(bits)
    if chat_template is not None:
        template_text(chat_template)
    source = model_source(model)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if dtype is None:
        dtype = default_dtype(device)
    elif isinstance(dtype, str):
        dtype = DTYPES[dtype]
    with clear_faults(model):
        return _load(model, source, bits, rank, alpha, seed, device, dtype, decoding, chat_template)


def check_bitsandbytes(bits: int) -> None:
    """Raise ValueError if the library that holds weights in 4 or 8 bits is missing or broken."""
    try:
        import bitsandbytes  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        raise ValueError(
            f"--bits {bits} needs bitsandbytes, which cannot be imported ({error}): pip install "
            "bitsandbytes, or choose --bits 16, LoRA on weights that are not quantised (on a CPU "
            "in float32: eight times the memory of 4 bits)"
        ) from error


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


def _load(model, source, bits, rank, alpha, seed, device, dtype, decoding, chat_template) -> Policy:
    """What `load_policy` does once its arguments are known to be possible."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from cascade_kit.attention import register

    # A local folder is named by its last part: a path means nothing on another machine.
    name = Path(model).name if Path(source).is_dir() else source
    tokenizer = AutoTokenizer.from_pretrained(source)
    template = set_template(tokenizer, chat_template, name)
    base = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=dtype,
        device_map={"": device},
        attn_implementation=register(),
        quantization_config=quantisation(bits, device, dtype),
    )
    settings = {"name": name, "bits": bits, "dtype": dtype, "template": template}
    return adapt(base, tokenizer, rank=rank, alpha=alpha, seed=seed, decoding=decoding, **settings)


def adapt(
    base: Any,
    tokenizer: Any,
    *,
    rank: int = 16,
    alpha: int = 32,
    seed: int = 0,
    **settings: Any,
) -> Policy:
    """A causal language model with a fresh adapter on all its linear layers but the head.

    `settings` are those of `Policy`. The model is frozen; it needs an attention that `register`
    made known.
    """
    from peft import LoraConfig, get_peft_model

    from cascade_kit.lora import use_adapted_forward

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
    # A broken template shows here, before any work.
    return Policy(adapted, tokenizer, **settings)


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
    return hub_id(str(model))


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
    major, _ = torch.cuda.get_device_capability(torch.device(device))
    return torch.bfloat16 if major >= 8 else torch.float16


def quiet_libraries() -> None:
    """Keep the libraries' progress bars and per-call messages out of the log."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    for message in (".*past_key_values.*", ".*gradient_checkpointing.*"):  # renamed in 5.24
        warnings.filterwarnings("ignore", message=message, category=FutureWarning)
