"""A Bradley-Terry reward model as a second LoRA adapter and a scalar head on the same base.

No second copy of the language model exists: scoring switches to the adapter "reward_model", reads
the hidden state at the last token of (prompt, answer) and multiplies it with the head. The loss is
-log sigmoid(r(chosen) - r(rejected)) (paper, section 4.2.2).
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from cascade_kit.budgets import reading_tokens
from cascade_kit.policy import REWARD_MODEL, Policy
from cascade_kit.problem import PreferencePair
from cascade_kit.rollout import Rollout
from cascade_kit.verifiers.thinking import CLOSE, OPEN, answer_part

MAX_TOKENS = 2048  # of a prompt and its answer


@dataclass(frozen=True)
class PairRecord:
    """One step of reward-model training."""

    step: int
    loss: float  # nats a pair; log 2 at chance
    accuracy: float  # share of the batch's pairs ranked right before the step


class RewardModel:
    """Scores answers with the adapter "reward_model" of a policy; call it on rollouts."""

    def __init__(self, policy: Policy, *, seed: int = 0, max_tokens: int = MAX_TOKENS):
        self.policy = policy
        self.max_tokens = min(max_tokens, policy.max_positions)
        self.batch_tokens = reading_tokens(policy.dtype)  # padded, in one forward
        torch.manual_seed(seed)  # of the adapter's A and of the head
        policy.add_adapter(REWARD_MODEL)
        self.head = nn.Linear(policy.model.config.hidden_size, 1).to(policy.device)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def __call__(self, rollouts: Sequence[Rollout]) -> np.ndarray:
        """Raw scores (N,) of sampled answers.

        Only the text after the thinking is judged. An answer that was cut off has no end-of-turn
        token, or no end of its thinking, and is judged as it stands: unfinished (section 4.3.2).
        """
        return self.score_ids([self._rollout_ids(r) for r in rollouts])

    def score(self, prompts: Sequence[str], completions: Sequence[str]) -> np.ndarray:
        """Raw scores (N,) of finished answers given as text."""
        pairs = zip(prompts, completions, strict=True)
        return self.score_ids([self.encode(prompt, text) for prompt, text in pairs])

    def encode(self, prompt: str, completion: str) -> list[int]:
        """Ids of a prompt, a finished answer and the end of the turn."""
        answer = self.policy.tokenizer(answer_part(completion), add_special_tokens=False)[
            "input_ids"
        ]
        return [*self._prompt(prompt), *answer, self.policy.tokenizer.eos_token_id]

    def _prompt(self, prompt: str) -> list[int]:
        """Pairs hold no thoughts and no examples, so their prompts ask for none."""
        off = None if self.policy.chat.switch is None else False
        return self.policy.encode_prompt(prompt, thinking=off)

    def _rollout_ids(self, rollout: Rollout) -> list[int]:
        if CLOSE in rollout.text and rollout.stopped:
            return self.encode(rollout.problem.prompt, rollout.text)
        prompt = self._prompt(rollout.problem.prompt)
        if OPEN in rollout.text:  # a thought without end, as it stands
            prompt = self.policy.encode_prompt(rollout.problem.prompt, thinking=rollout.thinking)
        if rollout.stopped:  # the one end of turn that the reward model was trained with
            end = self.policy.tokenizer.eos_token_id
            return [*prompt, *rollout.completion_ids[:-1], end]
        return [*prompt, *rollout.completion_ids]

    @torch.no_grad()
    def score_ids(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Raw scores (N,) of token rows, in order; the batching changes only the rounding."""
        scores = np.zeros(len(rows))
        with self.policy.using(REWARD_MODEL):
            for batch in self._batches(rows):
                scores[batch] = self._forward([rows[i] for i in batch]).float().cpu().numpy()
        return scores

    def _forward(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Scores (B,) with gradient; the adapter must be active. Long rows lose their beginning,
        so that the end of the answer is always seen."""
        kept = [torch.tensor(row[-self.max_tokens :]) for row in rows]
        ids = nn.utils.rnn.pad_sequence(kept, batch_first=True).to(self.policy.device)
        hidden = self.policy.backbone(input_ids=ids, use_cache=False).last_hidden_state
        last = torch.tensor([len(row) - 1 for row in kept], device=hidden.device)
        rows_index = torch.arange(len(kept), device=hidden.device)
        return self.head(hidden[rows_index, last].float())[:, 0]

    def _batches(self, rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        batch: list[int] = []
        for i in sorted(range(len(rows)), key=lambda i: len(rows[i])):
            if batch and (len(batch) + 1) * len(rows[i]) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def accuracy(self, pairs: Sequence[PreferencePair]) -> float:
        """Share of pairs whose chosen answer scores higher; a tie counts half."""
        prompts = [pair.prompt for pair in pairs]
        chosen = self.score(prompts, [pair.chosen for pair in pairs])
        rejected = self.score(prompts, [pair.rejected for pair in pairs])
        return float(np.mean((chosen > rejected) + 0.5 * (chosen == rejected)))

    def train(
        self,
        pairs: Sequence[PreferencePair],
        *,
        learning_rate: float,
        batch: int = 32,
        seed: int = 0,
    ) -> Iterator[PairRecord]:
        """One epoch over the pairs (more were worse, section 4.2.2), a record per step."""
        order = list(pairs)
        random.Random(f"{seed}/reward model").shuffle(order)
        with self.policy.using(REWARD_MODEL, train=True):
            adapter = list(self.policy.adapter_parameters(REWARD_MODEL).values())
        parameters = [*adapter, *self.head.parameters()]
        optimizer = torch.optim.AdamW(
            parameters, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        for step, start in enumerate(range(0, len(order), batch), start=1):
            chunk = order[start : start + batch]
            optimizer.zero_grad(set_to_none=True)
            loss, right = 0.0, 0
            # The adapter is trainable only inside the block, so nothing else can train it.
            with self.policy.using(REWARD_MODEL, train=True):
                for rows, too_long in self._pair_batches(chunk):
                    with self.policy.recomputing(too_long):
                        chosen, rejected = self._forward(rows).chunk(2)
                        part = bradley_terry_loss(chosen, rejected) * (len(chosen) / len(chunk))
                        self.policy.loss_scale.backward(part)
                    loss += part.item()
                    right += int((chosen > rejected).sum())
                self.policy.loss_scale.step(optimizer, parameters, 1.0)
            yield PairRecord(step, loss, right / len(chunk))
        optimizer.zero_grad(set_to_none=True)

    def _pair_batches(
        self, pairs: Sequence[PreferencePair]
    ) -> Iterator[tuple[list[list[int]], bool]]:
        """Token rows of consecutive pairs, chosen before rejected, in batches the memory allows;
        True with a pair that is alone and still too long."""
        limit = self.policy.tokens_per_forward()
        batch: list[tuple[list[int], list[int]]] = []
        longest = 0
        for pair in pairs:
            rows = (self.encode(pair.prompt, pair.chosen), self.encode(pair.prompt, pair.rejected))
            width = min(self.max_tokens, max(map(len, rows)))
            if batch and 2 * (len(batch) + 1) * max(longest, width) > limit:
                yield _sides(batch), 2 * longest > limit
                batch, longest = [], 0
            batch.append(rows)
            longest = max(longest, width)
        yield _sides(batch), 2 * longest > limit

    def save(self, folder: Path, **facts: float) -> None:
        """Adapter (a PEFT folder), head and facts such as the held-out accuracy."""
        from safetensors.torch import save_file

        self.policy.save_adapter(folder, REWARD_MODEL)
        save_file(self.head.state_dict(), folder / "head.safetensors")
        (folder / "reward_model.json").write_text(json.dumps(facts, indent=1) + "\n")

    def load(self, folder: Path) -> None:
        """Take over the adapter and head that `save` wrote."""
        from safetensors.torch import load_file

        self.policy.load_adapter(folder, REWARD_MODEL)
        self.head.load_state_dict(load_file(folder / "head.safetensors"))


def bradley_terry_loss(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """Mean of -log sigmoid(chosen - rejected) over pairs (B,): a scalar."""
    return -nn.functional.logsigmoid(chosen - rejected).mean()


def _sides(batch: Sequence[tuple[list[int], list[int]]]) -> list[list[int]]:
    """All chosen rows, then all rejected ones."""
    return [row for side in zip(*batch, strict=True) for row in side]
