"""The child process of the peer: TRL's GRPOTrainer on the same work, set up to be fast.

    python tests/bench/peer.py JOB.json RESULT.json

Same model folder, NF4 settings, LoRA, prompts, reward and sampling as ours; gradient checkpointing
off, float32 on a CPU, no KL, no logs, no saved states. One difference from TRL's defaults is needed
for equal work: bitsandbytes' CPU fast path is off, since with it no gradient comes back through the
4-bit layers.
"""

import tempfile
from collections.abc import Callable

from ours import (
    ALPHA,
    LEARNING_RATE,
    RANK,
    clock,
    grouped,
    main,
    make_problems,
    make_stage,
    memory_report,
    prepare,
    schedule_entry,
)


def load(source: str, device: str, seed: int) -> tuple:
    """The 4-bit model with a fresh adapter, its tokenizer and its LoRA configuration."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from cascade_kit.loading import default_dtype, quantisation

    dtype = default_dtype(device)
    model = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=dtype,
        device_map={"": device},
        attn_implementation="sdpa",
        quantization_config=quantisation(4, device, dtype),
    )
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
    torch.manual_seed(seed)
    lora = LoraConfig(
        r=RANK,
        lora_alpha=ALPHA,
        lora_dropout=0.0,
        bias="none",
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, lora), AutoTokenizer.from_pretrained(source), lora


def grpo_config(job: dict, folder: str):
    """TRL's settings for the job."""
    from trl import GRPOConfig

    rows = job["prompts"] * job["answers"]
    micro_batch = min(job["micro_batch"] or rows, rows)
    if rows % micro_batch:
        raise ValueError(f"{rows} answers a step are no multiple of {micro_batch}; choose another")
    on_gpu = job["device"].startswith("cuda")
    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=rows // micro_batch,  # one rollout batch, one update
        num_generations=job["answers"],
        num_iterations=1,
        max_steps=job["steps"] + 1,
        max_completion_length=job["max_new_tokens"],
        generation_kwargs={"min_new_tokens": job["max_new_tokens"]} if job["forced"] else None,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        loss_type="dapo",
        beta=0.0,
        scale_rewards="group",
        mask_truncated_completions=False,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        bf16=on_gpu,
        fp16=False,
        gradient_checkpointing=False,
        use_cpu=not on_gpu,
        shuffle_dataset=False,  # the prompts of each step are those of ours
        dataloader_num_workers=0,
        seed=job["seed"],
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def recorded_reward(stage, batches: list[list], prompt_lengths: dict[str, int], schedules: list):
    """The stage's own score as TRL's reward function; it notes the schedule of every step."""

    def reward(prompts, completions, completion_ids, **_) -> list[float]:
        problems = [p for p in batches[len(schedules)] for _ in range(stage.answers)]
        asked = [prompt[-1]["content"] for prompt in prompts]
        if asked != [p.prompt for p in problems]:
            raise RuntimeError("TRL drew other prompts than planned; the work is not the same")
        texts = [completion[0]["content"] for completion in completions]
        values = [score.value for score in stage.domain.score(problems, texts)]
        columns = (asked, [len(ids) for ids in completion_ids], values)
        schedules.append(
            [
                schedule_entry(prompt_lengths[prompt[0]], lengths, rewards)
                for prompt, lengths, rewards in zip(
                    *(grouped(column, stage.answers) for column in columns), strict=True
                )
            ]
        )
        return values

    return reward


def step_clock(device: str, ends: list[float]):
    """A callback that notes when each optimiser step ended."""
    from transformers import TrainerCallback

    class StepClock(TrainerCallback):
        def on_step_end(self, *_, **__):
            ends.append(clock(device))

    return StepClock()


def run(job: dict) -> dict:
    """Train `steps` steps after one to warm up; a step lasts from the last one's end to its own."""
    import torch

    from cascade_kit.curriculum import Curriculum
    from cascade_kit.loading import model_source, quiet_libraries

    quiet_libraries()
    source = model_source(job["model"])
    start = prepare(source, ("datasets", "trl.trainer.grpo_trainer"))
    from datasets import Dataset
    from trl import GRPOTrainer

    model, tokenizer, lora = load(source, job["device"], job["seed"])
    encode = encoder(tokenizer)
    stage = make_stage(job)
    problems = make_problems(job, stage, encode)
    curriculum = Curriculum(problems, stage, job["seed"])
    batches = [curriculum.draw(stage, stage.prompts) for _ in range(stage.steps)]
    lengths = {p.prompt: len(encode(p.prompt)) for p in problems}
    rows = [{"prompt": [{"role": "user", "content": p.prompt}]} for b in batches for p in b]
    ends: list[float] = []
    schedules: list[list[dict]] = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=recorded_reward(stage, batches, lengths, schedules),
            args=grpo_config(job, folder),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[step_clock(job["device"], ends)],
        )
        check_stops(trainer, tokenizer)
        trainer.train()
    if len(schedules) != stage.steps or len(ends) != stage.steps:
        raise RuntimeError(f"{len(schedules)} rollouts and {len(ends)} updates: not on-policy")
    return {
        "source": source,
        "seconds": [end - begin for begin, end in zip(ends, ends[1:], strict=False)],
        "schedules": schedules[1:],
        "memory_mb": memory_report(job["device"], start),
        "threads": torch.get_num_threads(),
        "stop_ids": sorted(trainer.eos_token_ids),
        "configuration": configuration(trainer, lora, job["device"]),
    }


def encoder(tokenizer) -> Callable[[str], list[int]]:
    """Prompt text -> ids of one user turn, as TRL encodes it."""

    def encode(prompt: str) -> list[int]:
        return tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )

    return encode


def check_stops(trainer, tokenizer) -> None:
    """TRL must stop where our rollouts stop; RuntimeError otherwise."""
    from cascade_kit.policy import stop_ids

    ours = set(stop_ids(tokenizer, trainer.model.generation_config))
    if ours != set(trainer.eos_token_ids):
        raise RuntimeError(f"stop ids differ: ours {ours}, TRL's {trainer.eos_token_ids}")


def configuration(trainer, lora, device: str) -> dict:
    """Everything TRL ran with; paths of this machine left out."""
    from cascade_kit.loading import default_dtype, quantisation

    arguments = {
        name: value
        for name, value in trainer.args.to_dict().items()
        if name not in ("output_dir", "logging_dir", "run_name")
    }
    adapter = {k: v for k, v in lora.to_dict().items() if k != "base_model_name_or_path"}
    quantised = quantisation(4, device, default_dtype(device)).to_dict()
    return {
        "grpo": plain(arguments),
        "generation": plain(trainer.generation_config.to_diff_dict()),
        "lora": plain(adapter),
        "quantisation": plain(quantised) | {"support_avx512bf16_for_cpu": False},
        "attention": trainer.model.config._attn_implementation,
    }


def plain(value):
    """The value as JSON can hold it."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return value if isinstance(value, str | int | float | bool | None) else str(value)


if __name__ == "__main__":
    main(run)
