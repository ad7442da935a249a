"""What do the demo's clients say, and what of it have they said before?"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

Message = dict[str, str]

_TEXT = "the route of a request through a gateway to one of many servers depends on what they do now"
_WORDS = _TEXT.split()
_AT_ONCE = 8  # conversations under way
_TURNS = 8
_INSTRUCTIONS = 600  # words that a conversation begins with; a word is about 1.4 tokens
_DOCUMENT = 2800
_QUESTION = 220


def filler(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words))


@dataclass(slots=True, eq=False)
class Conversation:
    """Each turn sends all that was said before."""

    messages: list[Message]
    turns: int = 0
    server: str | None = None  # who answered the last turn; None: there was none
    waits: bool = False  # for an answer

    def answered(self, answer: str, server: str | None) -> None:
        self.messages.append({"role": "assistant", "content": answer})
        self.turns += 1
        self.server = server


@dataclass(slots=True)
class Conversations:
    """Some at a time; each ends after some turns, and another begins."""

    rng: random.Random
    _under_way: list[Conversation] = field(default_factory=list)
    _begun: int = 0

    def turn(self) -> Conversation:
        """One that waits for no answer, its next message already in it. It waits from now on."""
        idle = [each for each in self._under_way if not each.waits]
        enough = idle and len(self._under_way) >= _AT_ONCE
        conversation = self.rng.choice(idle) if enough else self._begin()
        conversation.messages.append({"role": "user", "content": filler(self.rng, self.rng.randint(20, 60))})
        conversation.waits = True
        return conversation

    def over(self, conversation: Conversation, *, ok: bool) -> None:
        """A turn has ended; the conversation goes on unless it failed or is long enough."""
        conversation.waits = False
        if not ok or conversation.turns >= _TURNS:
            self._under_way.remove(conversation)

    def _begin(self) -> Conversation:
        self._begun += 1
        instructions = f"conversation {self._begun}: {filler(self.rng, _INSTRUCTIONS)}"
        conversation = Conversation([{"role": "system", "content": instructions}])
        self._under_way.append(conversation)
        return conversation


@dataclass(slots=True)
class Document:
    """A text that many ask about, each in words of their own."""

    rng: random.Random
    content: str = ""

    def __post_init__(self) -> None:
        self.content = f"the document: {filler(self.rng, _DOCUMENT)}"

    def question(self, number: int) -> list[Message]:
        asked = f"question {number}: {filler(self.rng, _QUESTION)}"
        return [{"role": "system", "content": self.content}, {"role": "user", "content": asked}]
