"""What do the prompts of a load test say?

Nothing, in as many tokens as are wanted: token ids drawn at random from those that the server's own tokenizer made of
ordinary text; or, where it does not tell, ordinary words. No two prompts begin alike, so nothing of them is found in
the prefix cache, but for the part that all are to share. They differ from one run to the next, whatever the seed, or a
server would have those of the last run cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

_TEXT = """
the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not
what all were we when your can said there use an each which she do how their if will up other about out many then them
these so some her would make like him into time has look two more write go see number no way could people my than
first water been call who oil its now find long down day did get come made may part over new sound take only little
work know place year live me back give most very after thing our just name good sentence man think say great where
help through much before line right too mean old any same tell boy follow came want show also around form three small
set put end does another well large must big even such because turn here why ask went men read need land different
home us move try kind hand picture again change off play spell air away animal house point page letter mother answer
found study still learn should world
"""
WORDS = tuple(_TEXT.split())
_LEAST_IDS = 50  # fewer make prompts that begin alike


@dataclass(frozen=True, slots=True)
class WordCost:
    """How many tokens a text of so many words has."""

    fixed: float = 0.0  # the chat template, a token that begins the text
    per_word: float = 1.3

    def words(self, tokens: int) -> int:
        return max(1, round((tokens - self.fixed) / self.per_word))

    @classmethod
    def of(cls, few: tuple[int, int], many: tuple[int, int]) -> WordCost:
        """By two texts: words and tokens of each. Raises ValueError if longer is not more."""
        per_word = (many[1] - few[1]) / (many[0] - few[0])
        if per_word <= 0.0:
            raise ValueError(f"a text of {many[0]} words has no more tokens than one of {few[0]}")
        return cls(few[1] - few[0] * per_word, per_word)


class Prompts:
    """Makes them. `ids`: what tokens may be, None: write words, which cost as `cost` says; `shared_ratio`: the part of
    each prompt that all have in common, at its beginning."""

    def __init__(self, ids: Sequence[int] | None, cost: WordCost, shared_ratio: float, rng: Random) -> None:
        self._ids = usable(ids)
        self._cost = cost
        self._shared_ratio = shared_ratio
        self._rng = rng
        self._shared: list[int] = []
        self._shared_words: list[str] = []

    @property
    def exact(self) -> bool:
        """Prompts have exactly as many tokens as asked for."""
        return self._ids is not None

    def make(self, tokens: int) -> list[int] | str:
        """A prompt of so many tokens (about, in words)."""
        if self._ids is None:
            return self.text(self._cost.words(tokens))
        shared = round(tokens * self._shared_ratio)
        if shared > len(self._shared):
            self._shared += self._rng.choices(self._ids, k=shared - len(self._shared))
        return self._shared[:shared] + self._rng.choices(self._ids, k=tokens - shared)

    def text(self, words: int) -> str:
        """A prompt of so many words."""
        shared = round(words * self._shared_ratio)
        if shared > len(self._shared_words):
            self._shared_words += self._rng.choices(WORDS, k=shared - len(self._shared_words))
        return " ".join(self._shared_words[:shared] + self._rng.choices(WORDS, k=words - shared))


def usable(ids: Sequence[int] | None) -> list[int] | None:
    """Those that are distinct; None: too few to make prompts of."""
    distinct = sorted(set(ids or ()))
    return distinct if len(distinct) >= _LEAST_IDS else None


def sample_text() -> str:
    """What to ask the server's tokenizer about."""
    return " ".join(WORDS)
