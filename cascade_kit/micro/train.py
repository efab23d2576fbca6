"""Train the embedded model `micro` from scratch: the supervised (SFT) start of the cascade.

    python -m cascade_kit.micro.train --out DIR [--steps N] [--seed S]

A Llama of 1.8 million parameters learns the noisy demonstrations of all five domains. Training is
quantisation-aware: every forward sees the NF4 value of each linear weight (straight-through
gradient), and the weights that are saved lie on the NF4 grid, so that the 32-bit and the 4-bit
model are the same function. Without this, NF4 moves a small model's logits by several nats.
"""

import argparse
import math
import random
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import parametrize

from cascade_kit.domains.code import CODE
from cascade_kit.domains.instruct import INSTRUCT
from cascade_kit.domains.math import MATH
from cascade_kit.domains.rlhf import RLHF
from cascade_kit.domains.swe import SWE
from cascade_kit.micro.demonstrations import demonstrate

VOCABULARY = 1024
ROW = 512  # tokens in a packed row
BLOCK = 64  # weights that share one NF4 scale
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Share of each domain in the demonstrations: SWE answers must be copied exactly, which a small
# model learns last.
MIX = ((RLHF, 0.15), (INSTRUCT, 0.20), (MATH, 0.16), (CODE, 0.15), (SWE, 0.34))


def examples(rng: random.Random, n: int) -> list[tuple[str, str]]:
    """`n` (prompt, answer) pairs over all domains and difficulties, from the sft split only."""
    pairs = []
    for domain in rng.choices([d for d, _ in MIX], weights=[w for _, w in MIX], k=n):
        difficulty = rng.choice((1, 2, 2, 3))
        problem = domain.problems("sft", 1, seed=rng.getrandbits(48), difficulty=difficulty)[0]
        pairs.append((problem.prompt, demonstrate(problem, rng)))
    return pairs


def build_tokenizer(rng: random.Random):
    """A byte-level BPE over the demonstrations, digits split, with a ChatML template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            # A newline and its indentation are one piece; a word takes the space before it.
            pre_tokenizers.Split(Regex(r"\n *| ?\p{L}+| ?[^\s\p{L}]+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ["user\nassistant\nsystem\n"] * 50
    texts += [f"{prompt}\n{answer}" for prompt, answer in examples(rng, 6000)]
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, model_max_length=4096
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(vocabulary: int):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


class StraightThroughNF4(nn.Module):
    """Replaces a weight by its NF4 value (single quantisation, blocks of 64) in the forward."""

    def __init__(self) -> None:
        super().__init__()
        from bitsandbytes.functional import get_4bit_type

        code = get_4bit_type("nf4", device="cpu")
        self.register_buffer("code", code, persistent=False)
        self.register_buffer("edges", (code[1:] + code[:-1]) / 2, persistent=False)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + (self.snap(weight.detach()) - weight.detach())

    def snap(self, weight: torch.Tensor) -> torch.Tensor:
        blocks = weight.reshape(-1, BLOCK)
        scale = blocks.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)
        return (self.code[torch.bucketize(blocks / scale, self.edges)] * scale).reshape(
            weight.shape
        )


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The layers that 4-bit loading quantises: all linear ones but the tied output head."""
    return [m for n, m in model.named_modules() if isinstance(m, nn.Linear) and "lm_head" not in n]


def pack(tokenizer, pairs: list[tuple[str, str]]) -> list[dict]:
    """Examples in chat form, packed in order into rows of ROW tokens.

    Each row has ids, positions (restarting in every example), document numbers and loss weights
    (1 on the answer, 0.2 on the prompt, so that the model also learns the language itself).
    """
    texts = [f"{START}user\n{p}{END}\n{START}assistant\n" for p, _ in pairs]
    prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
    answers = tokenizer([a + END for _, a in pairs], add_special_tokens=False)["input_ids"]
    rows, row = [], {"ids": [], "positions": [], "documents": [], "weights": []}
    for prompt, answer in zip(prompts, answers, strict=True):
        length = len(prompt) + len(answer)
        if len(row["ids"]) + length > ROW:
            rows.append(row)
            row = {"ids": [], "positions": [], "documents": [], "weights": []}
        document = row["documents"][-1] + 1 if row["documents"] else 0
        row["ids"] += prompt + answer
        row["positions"] += range(length)
        row["documents"] += [document] * length
        row["weights"] += [0.0] + [0.2] * (len(prompt) - 1) + [1.0] * len(answer)
    return rows


def batch_loss(model, rows: list[dict]) -> torch.Tensor:
    """Weighted next-token cross-entropy of packed rows; examples do not see each other."""
    tensors = {key: _padded([row[key] for row in rows]) for key in rows[0]}
    documents = tensors["documents"]
    causal = torch.tril(torch.ones(ROW, ROW, dtype=torch.bool))
    mask = (documents[:, :, None] == documents[:, None, :]) & causal  # (B, T, T)
    logits = model(
        input_ids=tensors["ids"], position_ids=tensors["positions"], attention_mask=mask[:, None]
    ).logits
    losses = nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), tensors["ids"][:, 1:].flatten(), reduction="none"
    )
    weights = tensors["weights"][:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


def _padded(lists: list[list]) -> torch.Tensor:
    return torch.tensor([values + [0] * (ROW - len(values)) for values in lists])


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 5 % of the steps, then cosine to 2 % of the peak."""
    warm = max(1, steps // 20)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm))))


def train(out: Path, *, steps: int, seed: int, batch: int, peak: float) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    tokenizer = build_tokenizer(rng)
    model = build_model(len(tokenizer))
    for layer in linear_layers(model):
        parametrize.register_parametrization(layer, "weight", StraightThroughNF4(), unsafe=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.05)
    rows: list[dict] = []
    for step in range(steps):
        while len(rows) < batch:
            rows += pack(tokenizer, examples(rng, 1200))
            rng.shuffle(rows)
        chosen, rows = rows[:batch], rows[batch:]
        optimizer.param_groups[0]["lr"] = learning_rate(step, steps, peak)
        with torch.autocast("cpu", dtype=torch.bfloat16):  # half the time; the grid is coarser
            loss = batch_loss(model, chosen)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
        if step % 200 == 199:
            save(out / "checkpoint", model, tokenizer)
    save(out, model, tokenizer)


def save(out: Path, model, tokenizer) -> None:
    """Save a copy whose linear weights lie exactly on the NF4 grid."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    plain = build_model(len(tokenizer))
    state = {
        name.replace("parametrizations.weight.original", "weight"): value
        for name, value in model.state_dict().items()
        if not name.endswith((".code", ".edges"))
    }
    plain.load_state_dict(state)
    for layer in linear_layers(plain):
        packed, quant_state = quantize_4bit(
            layer.weight.data, blocksize=BLOCK, quant_type="nf4", compress_statistics=False
        )
        layer.weight.data = dequantize_4bit(packed, quant_state).to(torch.float32)
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for model and tokenizer")
    parser.add_argument("--steps", type=int, default=1900)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16, help="packed rows of 512 tokens a step")
    parser.add_argument("--lr", type=float, default=3e-3)
    arguments = parser.parse_args()
    train(
        arguments.out,
        steps=arguments.steps,
        seed=arguments.seed,
        batch=arguments.batch,
        peak=arguments.lr,
    )


if __name__ == "__main__":
    main()
