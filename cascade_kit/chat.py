"""The chat template, read by rendering it: how a prompt becomes tokens, and what can be switched.

Nothing here knows the name of a model. A switch between thinking and answering at once takes one
of three forms:

  argument  the template takes `enable_thinking` (Qwen3, Nemotron 3) or `thinking`
  flags     " /think" or " /no_think" at the end of the user's turn (Nemotron-Cascade 1)
  block     the template knows thoughts but has no switch: the prompt ends with an empty thought,
            `<think></think>`, or with the beginning of one (Nemotron-Cascade 2)
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cascade_kit.verifiers.thinking import CLOSE, OPEN, open_thought

Thinking = Literal["on", "off", "half"] | None  # None: what the template does by itself
Dialogue = Sequence[Mapping[str, str]]  # turns with a role and a content

OWN = "the model's own"
TEMPLATES = {  # for models that have none
    "plain": (
        "{% for m in messages %}{{ m['role'] | capitalize }}: {{ m['content'] }}"
        # In an expression, since Jinja as it is set here drops a line end after a block.
        "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}Assistant:{% endif %}"
    ),
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}{{ eos_token }}\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
}
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
ARGUMENTS = ("enable_thinking", "thinking")
FLAGS = {True: " /think", False: " /no_think"}
BLOCKS = {True: f"{OPEN}\n", False: OPEN + CLOSE}
_BLOCK_AT_END = re.compile(rf"{OPEN}\s*(?:{CLOSE}\s*)?\Z")
_PROBE = "Xy"  # the text of a turn, where only its surroundings matter


# ---- choosing a template -------------------------------------------------------------------------


def template_text(choice: str) -> str:
    """The template that `--chat-template` names; ValueError for neither a name nor a file."""
    if choice in TEMPLATES:
        return TEMPLATES[choice]
    path = Path(choice).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--chat-template {choice} cannot be read ({error}); give plain, chatml or the path of "
            "a Jinja template"
        ) from error


def set_template(tokenizer: Any, choice: str | None, model: str) -> str:
    """Give a tokenizer the chosen template; returns where its template comes from, in words.

    A template of ours ends turns with the tokenizer's end token. ChatML in a vocabulary that has
    its own end of turn makes that the end token, as instruct models of this format do.
    """
    if choice is None:
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                f"{model} has no chat template, so it cannot be asked anything: it is a base "
                "model. Choose its instruct version, or give --chat-template plain, chatml or "
                "FILE (a Jinja template)"
            )
        return OWN
    tokenizer.chat_template = template_text(choice)
    if choice == "chatml" and all(_pieces(tokenizer, token) == 1 for token in CHATML_TOKENS):
        tokenizer.eos_token = CHATML_TOKENS[1]
    if choice in TEMPLATES and not tokenizer.eos_token:
        raise ValueError(
            f"the tokenizer of {model} names no end token, so that no answer would end; set "
            "eos_token in its tokenizer_config.json"
        )
    return choice


def _pieces(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


# ---- what a template does ------------------------------------------------------------------------


@dataclass(frozen=True)
class Chat:
    """A tokenizer's template and what was found out about it; `read_chat` makes one."""

    tokenizer: Any
    template: str  # where it comes from: the model's own, plain, chatml or a file
    switch: Literal["argument", "flags", "block"] | None
    argument: str  # of the switch of that kind
    adds_bos: bool  # the tokenizer puts a BOS in front of a text
    system_role: bool
    turn_ends: frozenset[int]  # special tokens that the template writes after an answer
    notes: tuple[str, ...]  # what a person should know

    @property
    def modes(self) -> tuple[bool | None, ...]:
        """Every `thinking` that a prompt can be written with."""
        return (None, True, False) if self.switch else (None,)

    def encode(self, dialogue: Dialogue, thinking: bool | None = None) -> list[int]:
        """Token ids of turns in the template, ready for the answer, with exactly one BOS if the
        tokenizer has one in use."""
        text = self.text(dialogue, thinking)
        # The template writes the special tokens itself; adding more would double the BOS.
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        bos = self.tokenizer.bos_token_id
        return [bos, *ids] if self.adds_bos and ids[:1] != [bos] else ids

    def text(self, dialogue: Dialogue, thinking: bool | None = None) -> str:
        """The turns in the template; `thinking` switches, None is the template's default.

        Raises ValueError for a switch that the template lacks.
        """
        if thinking is None:
            return _render(self.tokenizer, dialogue)
        if self.switch is None:
            raise ValueError(
                "this model's chat template has no switch between thinking and not; use "
                "thinking=None, or a model that has both modes"
            )
        if self.switch == "argument":
            return _render(self.tokenizer, dialogue, **{self.argument: thinking})
        if self.switch == "flags":
            return _render(self.tokenizer, flagged(dialogue, thinking))
        text = _render(self.tokenizer, dialogue)
        return _BLOCK_AT_END.sub("", text) + BLOCKS[thinking]

    def tail(self, thinking: bool | None = None) -> str:
        """What follows the words of the last user: the beginning of the answer to come."""
        return self._around(thinking)[1]

    def opening(self, thinking: bool | None = None) -> str:
        """The beginning of a thought that the prompt already holds, else an empty text."""
        return open_thought(self.tail(thinking))

    def _around(self, thinking: bool | None = None) -> tuple[str, str]:
        before, found, after = self.text([user(_PROBE)], thinking).rpartition(_PROBE)
        if not found:
            raise ValueError(
                "the chat template leaves out the user's turn; give another with --chat-template"
            )
        return before, after

    def check_mode(self, thinking: Thinking) -> None:
        """Raise ValueError for a stage that wants thoughts of a model that cannot be told to."""
        if thinking == "on" and self.switch is None:
            raise ValueError(
                "thinking='on' needs a switch, and this model's chat template has none; use "
                "thinking=None (the template as it is), or a model that has both modes"
            )

    def choose(self, thinking: Thinking, ids: Sequence[str], key: str) -> list[bool | None]:
        """Which of the problems `ids` are to be thought about: with "half" one half of them, drawn
        by the problem's id and `key`. All None for a template without a switch."""
        self.check_mode(thinking)
        if thinking != "half" or self.switch is None:
            mode = None if self.switch is None else {"on": True, "off": False}.get(thinking)
            return [mode] * len(ids)
        drawn = [hashlib.sha256(f"{key}/thinking/{i}".encode()).digest() for i in ids]
        # Of an odd number, whether the one in the middle thinks is a coin too.
        half = (len(ids) + (sum(d[-1] for d in drawn) % 2)) // 2
        first = set(sorted(range(len(ids)), key=drawn.__getitem__)[:half])
        return [i in first for i in range(len(ids))]

    def describe(self) -> dict[str, Any]:
        """For `run.json`."""
        tokenizer = self.tokenizer
        return {
            "template": self.template,
            # A template that was given goes with the run: an export needs it, and its file may go.
            "jinja": None if self.template == OWN else tokenizer.chat_template,
            "prompt": "{prompt}".join(self._around()),
            "tails": {m: self.tail(t) for m, t in (("on", True), ("off", False)) if self.switch},
            "thinking": self.thinking_words(),
            "system_role": self.system_role,
            "bos": tokenizer.bos_token if self._writes_bos() else None,
            "eos": tokenizer.eos_token,
            "pad": tokenizer.pad_token,
            "notes": list(self.notes),
        }

    def _writes_bos(self) -> bool:
        bos = self.tokenizer.bos_token_id
        return bos is not None and self.encode([user(_PROBE)])[0] == bos

    def thinking_words(self) -> str:
        """The switch in words."""
        return {
            None: "no switch in the template",
            "argument": f"switched by the template's {self.argument}",
            "flags": "switched by the flags /think and /no_think",
            "block": "switched by an empty or an open thought at the prompt's end",
        }[self.switch]


def read_chat(tokenizer: Any, template: str = OWN) -> Chat:
    """Find out by rendering what a tokenizer's template does."""
    switch, argument = find_switch(tokenizer)
    bos = tokenizer.bos_token_id
    return Chat(
        tokenizer=tokenizer,
        template=template,
        switch=switch,
        argument=argument,
        adds_bos=bos is not None and tokenizer("a")["input_ids"][:1] == [bos],
        system_role=has_system_role(tokenizer),
        turn_ends=turn_ends(tokenizer),
        notes=tuple(notes(tokenizer, template)),
    )


def find_switch(tokenizer: Any) -> tuple[Any, str]:
    """The kind of switch between thinking and not, and the name of the template's argument.

    What only the model reads cannot be seen in a rendering, but in what the template mentions: one
    that rewrites flags in earlier turns, or cuts thoughts out of them, belongs to a model that was
    trained with them.
    """
    turn = [user(_PROBE)]
    for name in ARGUMENTS:
        if _render(tokenizer, turn, **{name: True}) != _render(tokenizer, turn, **{name: False}):
            return "argument", name
    source = tokenizer.get_chat_template()
    tails = {_render(tokenizer, [user(_PROBE + f)]).replace(f, "") for f in FLAGS.values()}
    if len(tails) > 1 or FLAGS[False].strip() in source:
        return "flags", ""
    return ("block", "") if CLOSE in source or OPEN in source else (None, "")


def flagged(dialogue: Dialogue, thinking: bool) -> list[dict[str, str]]:
    """The turns with flags: earlier answers show no thoughts, so their questions forbid them."""
    last = len(dialogue) - 1
    return [
        {**turn, "content": turn["content"] + FLAGS[thinking and i == last]}
        if turn["role"] == "user"
        else dict(turn)
        for i, turn in enumerate(dialogue)
    ]


def has_system_role(tokenizer: Any) -> bool:
    """Whether a system turn can be given: some templates refuse one, others leave it out."""
    from jinja2 import TemplateError

    try:
        text = _render(tokenizer, [{"role": "system", "content": _PROBE}, user("a")])
    except TemplateError:
        return False
    return _PROBE in text


def turn_ends(tokenizer: Any) -> frozenset[int]:
    """The special token that the template writes after an answer: often another than the end of
    a text, and then the one with which answers really end."""
    from jinja2 import TemplateError

    turns = [user("a"), {"role": "assistant", "content": _PROBE}]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except TemplateError:
        return frozenset()
    after = tokenizer(text.rpartition(_PROBE)[2], add_special_tokens=False)["input_ids"]
    added = tokenizer.added_tokens_decoder
    return frozenset(i for i in after[:1] if i in added and added[i].special)


def notes(tokenizer: Any, template: str) -> list[str]:
    """What is unusual about a tokenizer with its template, in words."""
    found = []
    if template == "chatml":
        found += [
            f"{token} is {n} tokens in this vocabulary: the model has not learnt it as one"
            for token in CHATML_TOKENS[:1]
            if (n := _pieces(tokenizer, token)) > 1
        ]
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id == tokenizer.eos_token_id:
        found.append("pad is the end token: harmless here, padding is told by position")
    return found


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _render(tokenizer: Any, dialogue: Dialogue, **arguments: Any) -> str:
    return tokenizer.apply_chat_template(
        list(dialogue), tokenize=False, add_generation_prompt=True, **arguments
    )
