"""The memory of a stage's phases, part by part, each at the moment when it needs most.

A phase is a dict of parts in bytes that add up to its peak. Every answer is taken to be as long as
it may be, and every prompt as long as the longest.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from cascade_kit import plan_parts as parts
from cascade_kit.budgets import CACHE_BYTES, reading_tokens
from cascade_kit.logprobs import MicroBatch, batches_within, row_tokens
from cascade_kit.plan_parts import Machine, Shape
from cascade_kit.problem import Problem
from cascade_kit.reward_model import MAX_TOKENS
from cascade_kit.rollout import Rollout
from cascade_kit.stage import Stage

PAIRS = 32  # in a step of the reward model's training
WORKSPACE = 32 << 20  # of cuBLAS, on a GPU

Parts = dict[str, int]


@dataclass(frozen=True)
class Load:
    """A stage's work on a machine: what a step samples and learns from."""

    shape: Shape
    machine: Machine
    stage: Stage
    prompt_tokens: int  # of the longest prompts
    merged: bool  # whether a merged copy decodes
    eval_items: int = 0  # held-out items of a domain
    reward_model: bool = False  # whether one stays in memory, for this stage or another

    @property
    def length(self) -> int:
        """Of a prompt with its answer."""
        return self.prompt_tokens + self.stage.max_new_tokens

    @property
    def batch_prompts(self) -> int:
        """How many prompts a batch of rollouts has."""
        return self.prompts_at_a_time(self.stage.prompts, self.stage.answers)

    def prompts_at_a_time(self, prompts: int, answers: int) -> int:
        """How many of `prompts` are answered together; the rule of rollout.py."""
        group = parts.cache_bytes(self.shape, self.machine, answers, self.length)
        return max(1, min(prompts, CACHE_BYTES // group))

    def micro_batches(self) -> Iterator[MicroBatch]:
        """The update's batches, made by the code that makes them in training."""
        answers = []
        for p in range(self.stage.prompts):
            prompt = tuple([p] * self.prompt_tokens)
            completion = tuple([0] * self.stage.max_new_tokens)
            problem = Problem(str(p), self.stage.domain.name, "")
            for sample in range(self.stage.answers):
                answers.append(Rollout(problem, sample, prompt, completion, (), 0.0, False, ""))
        limit = parts.tokens_per_forward(self.shape, self.machine)
        return batches_within(answers, limit, self.shape.layers)


def standing(load: Load) -> Parts:
    """What is in memory in every phase, from the second step on."""
    shape, machine = load.shape, load.machine
    adapter = parts.adapter_bytes(shape, machine)
    adapters = 1 + (load.stage.kl_coef > 0) + load.reward_model
    found = {
        "linear weights": parts.linear_bytes(shape, machine),
        "embeddings, head, norms": parts.other_bytes(shape, machine),
        "adapters": adapters * adapter,
        "gradients": adapter,
        "optimiser": 2 * adapter,
    }
    if load.merged:
        found["merged copy"] = machine.b * shape.linear
    return found


def decoding_phase(load: Load, prompts: int, answers: int) -> Parts:
    """Filling the merged copy, reading the prompts, repeating them for their groups, or drawing
    the next token of all rows."""
    shape, machine = load.shape, load.machine
    prompts = load.prompts_at_a_time(prompts, answers)
    rows = prompts * answers
    read = min(prompts * load.prompt_tokens, max(reading_tokens(machine.dtype), prompts))
    adapted = not load.merged
    reading = {
        "KV cache": parts.cache_bytes(shape, machine, prompts, load.length),
        "working memory": parts.forward_bytes(shape, machine, read, adapted=adapted),
    }
    cache = parts.cache_bytes(shape, machine, rows, load.length)
    copied = parts.cache_bytes(shape, machine, rows, load.prompt_tokens) // shape.layers
    repeating = {"KV cache": cache, "working memory": copied}  # the last layer's, for the group
    drawing = {
        "KV cache": cache,
        "logits": parts.draw_bytes(shape, rows),
        "working memory": parts.unpacked_bytes(shape, machine, adapted),
    }
    filling = {"working memory": parts.filling_bytes(shape, machine) * load.merged}
    return standing(load) | _with_workspace(load, _largest(filling, reading, repeating, drawing))


def update_phase(load: Load) -> Parts:
    """The end of a micro-batch's forward, its backward, or the optimiser's step."""
    shape, machine = load.shape, load.machine
    moments = [{"working memory": parts.adapter_bytes(shape, machine) * machine.cuda}]
    for batch in load.micro_batches():
        width = max(map(row_tokens, batch.rows))
        tokens = len(batch.rows) * width
        masked = any(len(row) > 1 for row in batch.rows)
        predicted = sum(len(answer.completion_ids) for row in batch.rows for answer in row)
        kept, again = parts.activation_bytes(
            shape, machine, tokens, masked=masked, recompute=batch.recompute
        )
        kept += machine.b * (predicted * shape.hidden + masked * tokens * width)
        moments += [
            {
                "activations": kept,
                "logits": parts.chunk_bytes(shape, machine, predicted),
                "working memory": machine.b * (tokens + predicted) * shape.hidden,
            },
            {
                "activations": kept + again,
                "working memory": parts.backward_bytes(shape, machine, tokens),
            },
        ]
    return standing(load) | _with_workspace(load, _largest(*moments))


def reward_model_phase(load: Load) -> Parts:
    """The reward model learns from pairs, or reads the answers."""
    shape, machine = load.shape, load.machine
    length = min(load.length, MAX_TOKENS)
    rows = load.stage.prompts * load.stage.answers
    rows = min(rows, max(1, reading_tokens(machine.dtype) // length))
    reading = {"working memory": parts.forward_bytes(shape, machine, rows * length, adapted=True)}
    limit = parts.tokens_per_forward(shape, machine)
    pairs = max(1, min(PAIRS, limit // (2 * length)))
    tokens = 2 * pairs * length
    kept, again = parts.activation_bytes(
        shape, machine, tokens, masked=False, recompute=tokens > limit
    )
    learning = {
        "activations": kept + again,
        "working memory": parts.backward_bytes(shape, machine, tokens),
    }
    return standing(load) | _with_workspace(load, _largest(reading, learning))


def phases(load: Load) -> dict[str, Parts]:
    """The parts of every phase that a stage has."""
    found = {
        "evaluation": decoding_phase(load, load.eval_items, 1),
        "rollout": decoding_phase(load, load.stage.prompts, load.stage.answers),
    }
    if load.stage.needs_reward_model:
        found["reward model"] = reward_model_phase(load)
    return found | {"update": update_phase(load)}


def _largest(*moments: Parts) -> Parts:
    return max(moments, key=lambda moment: sum(moment.values()))


def _with_workspace(load: Load, moment: Parts) -> Parts:
    work = moment.get("working memory", 0) + WORKSPACE * load.machine.cuda
    return moment | {"working memory": work}
