"""A training step of known lengths on a policy, and the memory that its phases reach.

The planner's tests use it on the CPU and check.py on a GPU, with random weights in the shape of a
real model: the memory and the time of a step do not depend on what the weights are.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from cascade_kit import grpo
from cascade_kit.attention import register
from cascade_kit.domains.math import MATH
from cascade_kit.loading import MICRO, adapt, quiet_libraries
from cascade_kit.plan_parts import Machine, Shape
from cascade_kit.plan_phases import Load, phases, standing
from cascade_kit.policy import REWARD_MODEL, Policy
from cascade_kit.problem import PreferencePair, Score
from cascade_kit.records import Answer, UpdateStats
from cascade_kit.reward_model import RewardModel
from cascade_kit.rollout import Rollout, rollouts
from cascade_kit.stage import Stage
from cascade_kit.training_state import TrainingState

STD = 0.02  # of random weights


# ---- models of random weights --------------------------------------------------------------------


def random_policy(
    config: Mapping[str, Any], *, rank: int = 16, device: str = "cpu", dtype: torch.dtype
) -> Policy:
    """A policy on random NF4 weights in the shape of a configuration, with micro's tokenizer.

    The layers are quantised one by one where they will lie, so the whole model never exists in 16
    bits. Ids beyond the tokenizer's own decode to nothing.
    """
    quiet_libraries()  # before the imports: bitsandbytes speaks while it is imported
    import bitsandbytes as bnb
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    settings = {"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None, **config}
    shape = AutoConfig.for_model(settings.pop("model_type"), **settings)
    with init_empty_weights(include_buffers=False):
        base = AutoModelForCausalLM.from_config(shape, attn_implementation=register())
    for name, module in list(base.named_modules()):
        if type(module) is nn.Linear and module is not base.get_output_embeddings():
            base.set_submodule(name, _random_nf4(bnb, module, device, dtype))
    for name, parameter in list(base.named_parameters()):
        if parameter.is_meta:
            holder, _, key = name.rpartition(".")
            value = torch.ones(parameter.shape, dtype=dtype, device=device)
            if parameter.dim() > 1:  # all others are norms
                value.normal_(std=STD)
            setattr(base.get_submodule(holder), key, nn.Parameter(value, requires_grad=False))
    base.tie_weights()
    base.is_loaded_in_4bit = True  # peft asks it
    base.config.torch_dtype = base.config.dtype = dtype
    tokenizer = AutoTokenizer.from_pretrained(MICRO)
    return adapt(base.to(device), tokenizer, rank=rank, name="random", bits=4, dtype=dtype)


def _random_nf4(bnb: Any, layer: nn.Linear, device: str, dtype: torch.dtype) -> nn.Module:
    found = bnb.nn.Linear4bit(
        layer.in_features, layer.out_features, layer.bias is not None, compute_dtype=dtype,
        quant_type="nf4", device="meta",
    )  # fmt: skip
    weight = torch.empty(layer.weight.shape, dtype=dtype, device=device).normal_(std=STD)
    found.weight = bnb.nn.Params4bit(
        weight, requires_grad=False, quant_type="nf4", compress_statistics=device != "cpu"
    ).to(device)
    if layer.bias is not None:
        bias = torch.zeros(layer.out_features, dtype=dtype, device=device)
        found.bias = nn.Parameter(bias, requires_grad=False)
    return found


# ---- a step --------------------------------------------------------------------------------------


class Step:
    """A step whose prompts have `prompt_tokens` and whose answers all have the longest length.

    It takes over the policy: nothing stops an answer, and every prompt is made of numbers.
    """

    def __init__(self, policy: Policy, stage: Stage, prompt_tokens: int, rank: int = 16):
        self.policy, self.stage, self.prompt_tokens = policy, stage, prompt_tokens
        self.problems = MATH.problems("train", stage.prompts)
        self._numbers = {problem.prompt: i for i, problem in enumerate(self.problems)}
        policy.stop_ids = frozenset()
        policy.encode_prompt = self._prompt
        self.state = TrainingState(policy, stage, self.problems)
        self.reward_model: RewardModel | None = None
        if stage.needs_reward_model:
            self.reward_model = RewardModel(policy)
            self.reward_model.encode = self._pair_side
        machine = Machine(policy.bits, rank, policy.dtype, policy.device.type == "cuda")
        shape = Shape.of(policy.model.config)
        merged = policy.decoding == "merged"
        judged = REWARD_MODEL in policy.model.peft_config
        self.load = Load(shape, machine, stage, prompt_tokens, merged, 0, judged)

    def _prompt(self, prompt: str, *_: Any, **__: Any) -> list[int]:
        return [11 + self._numbers.get(prompt, 0), *range(30, 29 + self.prompt_tokens)]

    def _pair_side(self, *_: str) -> list[int]:
        return [5] * self.load.length

    def sample(self) -> list[list[Rollout]]:
        """Real answers, of the longest length."""
        return rollouts(
            self.policy, self.problems, self.stage.answers,
            max_new_tokens=self.stage.max_new_tokens, temperature=self.stage.temperature, key="k",
        )  # fmt: skip

    def learn(self, groups: list[list[Rollout]]) -> UpdateStats:
        """An update in which every answer counts."""
        answers = [
            Answer(replace(r, stopped=True), Score(1.0), 1.0, 1.0 if r.sample % 2 else -1.0)
            for group in groups
            for r in group
        ]
        return grpo.update(self.policy, self.state.optimizer, self.stage, answers)

    def judge(self, groups: list[list[Rollout]]) -> None:
        """The reward model learns from a batch of pairs and reads the answers."""
        pairs = [PreferencePair("", "", "", "")] * 32
        for _ in self.reward_model.train(pairs, learning_rate=1e-4):
            pass
        self.reward_model([rollout for group in groups for rollout in group])

    def peaks(self) -> dict[str, dict[str, float]]:
        """Of each phase the planned and the reached bytes, their ratio, and seconds.

        Gradients, moments and the merged copy exist before anything is measured.
        """
        groups = self.sample()
        self.learn(groups)
        works: dict[str, Callable[[], Any]] = {
            "rollout": self.sample,
            "update": lambda: self.learn(groups),
        }
        if self.reward_model is not None:
            works["reward model"] = lambda: self.judge(groups)
        planned, always = phases(self.load), sum(standing(self.load).values())
        found = {}
        for name, work in works.items():
            reached, seconds = measured(work, self.policy.device.type)
            wanted = sum(planned[name].values())
            if not self.load.machine.cuda:  # there only what is allocated meanwhile is known
                wanted -= always
            found[name] = {
                "planned": wanted,
                **reached,
                "ratio": wanted / reached["allocated"],
                "seconds": seconds,
            }
        return found


# ---- memory --------------------------------------------------------------------------------------


def measured(work: Callable[[], Any], device: str) -> tuple[dict[str, int], float]:
    """({"allocated": most bytes at a time, on a GPU also "reserved"}, seconds) of some work."""
    if device != "cuda":
        started = time.perf_counter()
        return {"allocated": reached(work)}, time.perf_counter() - started
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    found = {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }
    return found, seconds


def reached(work: Callable[[], Any]) -> int:
    """The most bytes that some work had allocated at a time on the CPU, of the allocator's own
    events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    held = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most
