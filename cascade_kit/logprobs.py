"""Log-probabilities of sampled answers under the policy, with gradient: most of an update's time.

The answers of a group share their prompt, so a group is one row, and the prompt is in it once:

    row        prompt . answer 1 . answer 2 . ... . answer G
    position   0..p-1   p, p+1, ..   p, p+1, ..       p, p+1, ..
    sees       itself   prompt and   prompt and       prompt and
                        itself       itself           itself          (never what comes later)

`answer_logps` computes that, `plain_logps` the same with a row for every answer: it is what the
tests compare with. The last token of an answer predicts nothing and is in no row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from cascade_kit.attention import NAME
from cascade_kit.budgets import logit_positions
from cascade_kit.policy import Policy
from cascade_kit.rollout import Rollout

PADDING = 0.1  # share of a batch that may be padding
MASK_BYTES = 256 << 20  # of the masks of a batch

Row = Sequence[Rollout]  # answers to one prompt


@dataclass(frozen=True)
class MicroBatch:
    """Rows that are forwarded together; `recompute`: too long to keep their activations."""

    rows: list[list[Rollout]]
    recompute: bool


def micro_batches(policy: Policy, answers: Sequence[Rollout]) -> Iterator[MicroBatch]:
    """All answers, in batches that the memory allows and that hold little padding."""
    layers = policy.model.config.num_hidden_layers
    return batches_within(answers, policy.tokens_per_forward(), layers)


def batches_within(answers: Sequence[Rollout], limit: int, layers: int) -> Iterator[MicroBatch]:
    """All answers in batches of up to `limit` tokens, longer only where a row alone is."""
    batch: list[list[Rollout]] = []
    real = 0
    for row in rows_by_prompt(answers, limit, layers):
        length = row_tokens(row)  # the longest so far
        size = (len(batch) + 1) * length
        padded = size - real - length > PADDING * size
        masks = (len(batch) + 1) * mask_bytes(length) > MASK_BYTES
        if batch and (size > limit or padded or masks):
            yield MicroBatch(batch, row_tokens(batch[-1]) > limit)
            batch, real = [], 0
        batch.append(row)
        real += length
    yield MicroBatch(batch, row_tokens(batch[-1]) > limit)


def rows_by_prompt(answers: Sequence[Rollout], limit: int, layers: int) -> list[list[Rollout]]:
    """Answers to the same prompt in rows of up to `limit` tokens, short rows first.

    A prompt that fills more than half of that would be repeated in row after row; to recompute the
    activations of one long row costs less. Then a row may be half as many times longer as the
    model has layers, since a recomputed layer keeps nothing but its input.
    """
    groups: dict[tuple[int, ...], list[Rollout]] = {}
    for answer in answers:
        groups.setdefault(answer.prompt_ids, []).append(answer)
    rows: list[list[Rollout]] = []
    for prompt, group in groups.items():
        most = limit if 2 * len(prompt) <= limit else limit * max(1, layers // 2)
        row: list[Rollout] = []
        for answer in group:
            length = row_tokens([*row, answer])
            if row and (length > most or mask_bytes(length) > MASK_BYTES):
                rows.append(row)
                row = []
            row.append(answer)
        rows.append(row)
    return sorted(rows, key=row_tokens)


def row_tokens(row: Row) -> int:
    """Tokens that a row forwards."""
    return len(row[0].prompt_ids) + sum(len(answer.completion_ids) - 1 for answer in row)


def mask_bytes(length: int) -> int:
    """The mask of a row of this length: a boolean and what is added to the scores."""
    return 5 * length * length


# ---- the two paths -------------------------------------------------------------------------------


def answer_logps(policy: Policy, rows: Sequence[Row], temperature: float) -> torch.Tensor:
    """Log-probabilities (N,) of the N tokens of all answers, row by row and answer by answer."""
    if policy.attention not in (NAME, "sdpa"):
        raise ValueError(
            f"attention is {policy.attention!r}: only sdpa takes the mask of shared prompts as it "
            "is meant (eager is silently wrong by several nats); load with load_policy()"
        )
    device = policy.device
    laid_out = [_lay_out(row) for row in rows]
    ids, positions = (
        pad_sequence([part[i] for part in laid_out], batch_first=True).to(device) for i in (0, 1)
    )  # (R, L)
    mask = None  # a row with one answer is a plain causal sequence
    if any(len(row) > 1 for row in rows):
        owner = pad_sequence([part[2] for part in laid_out], batch_first=True, padding_value=-1)
        mask = additive(shared_prompt_mask(owner.to(device)), policy.dtype)
    hidden = policy.backbone(
        input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False
    ).last_hidden_state  # (R, L, H)
    length = hidden.shape[1]
    before = torch.cat([i * length + part[3] for i, part in enumerate(laid_out)])  # (N,)
    targets = torch.tensor([t for row in rows for a in row for t in a.completion_ids])
    # The end of a prompt predicts the first token of every answer: its gradient is a sum. Unlike
    # indexing, index_select adds in a fixed order, so that the same seed gives the same bytes.
    chosen = hidden.flatten(0, 1).index_select(0, before.to(device))  # (N, H)
    return chunked_logps(policy.head, chosen, targets.to(device), temperature)


def _lay_out(row: Row) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, positions and owners (L,) of a row (0: the prompt, k: answer k), and where the N
    tokens of its answers are predicted."""
    prompt = row[0].prompt_ids
    ids, positions, owners = list(prompt), list(range(len(prompt))), [0] * len(prompt)
    predicted = []
    for k, answer in enumerate(row, start=1):
        length = len(answer.completion_ids) - 1
        predicted += [len(prompt) - 1, *range(len(ids), len(ids) + length)]
        ids += answer.completion_ids[:-1]
        positions += range(len(prompt), len(prompt) + length)
        owners += [k] * length
    return tuple(map(torch.tensor, (ids, positions, owners, predicted)))


def shared_prompt_mask(owner: torch.Tensor) -> torch.Tensor:
    """Who sees whom, (R, 1, L, L): what is not later and belongs to the prompt or to oneself.

    `owner` (R, L) is 0 for the prompt, k for answer k and -1 for padding, which sees itself, so
    that no line of the mask is empty.
    """
    own = owner[:, :, None] == owner[:, None, :]
    prompt = (owner == 0)[:, None, :]
    return (own | prompt).tril()[:, None]


def additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A boolean mask as what is added to the scores: attention would make it so in every layer."""
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf)


def plain_logps(policy: Policy, rows: Sequence[Row], temperature: float) -> torch.Tensor:
    """What `answer_logps` returns, with the prompt in front of every answer."""
    answers = [answer for row in rows for answer in row]
    sequences = [torch.tensor(a.prompt_ids + a.completion_ids) for a in answers]
    # Right padding needs no attention mask: causal attention never looks behind a real token.
    ids = pad_sequence(sequences, batch_first=True).to(policy.device)
    logits = policy.head(policy.backbone(input_ids=ids, use_cache=False).last_hidden_state)
    found = []
    for i, answer in enumerate(answers):
        end = len(answer.prompt_ids) + len(answer.completion_ids)
        span = slice(len(answer.prompt_ids), end)
        found.append(token_logps(logits[i, span.start - 1 : end - 1], ids[i, span], temperature))
    return torch.cat(found)


def chunked_logps(
    head: torch.nn.Module, hidden: torch.Tensor, ids: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Log-probabilities (N,) of ids (N,) from hidden states (N, H), a chunk of logits at a time."""
    return _ChunkedLogps.apply(hidden, ids, head, temperature)


class _ChunkedLogps(torch.autograd.Function):
    """`token_logps` of a frozen head, without the logits (N, V) ever existing.

    The derivative of log p(id) by the hidden state is (W[id] - sum over v of p(v) W[v]) / T: one
    row of H numbers a token. It is worked out while a chunk's logits are there, so the backward is
    a product, and neither keeps the logits nor computes them again.
    """

    @staticmethod
    def forward(ctx, hidden, ids, head, temperature):
        wanted = ctx.needs_input_grad[0]
        slopes = torch.empty_like(hidden) if wanted else None
        logps = []
        chunk = logit_positions(head.weight.dtype, head.weight.shape[0])
        for start in range(0, len(ids), chunk):
            part = slice(start, start + chunk)
            logits = head(hidden[part])
            logps.append(token_logps(logits, ids[part], temperature))
            if wanted:
                probabilities = (logits.to(logps[-1].dtype) / temperature).softmax(-1)
                mean = probabilities.to(head.weight.dtype) @ head.weight
                slopes[part] = (head.weight[ids[part]] - mean) / temperature
        ctx.save_for_backward(slopes)
        return torch.cat(logps)

    @staticmethod
    def backward(ctx, gradient):
        (slopes,) = ctx.saved_tensors
        return gradient[:, None].to(slopes.dtype) * slopes, None, None, None


def token_logps(logits: torch.Tensor, ids: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities (...) of ids (...) under softmax(logits (..., V) / temperature)."""
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    return scaled.gather(-1, ids[..., None])[..., 0] - scaled.logsumexp(-1)
