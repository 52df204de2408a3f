"""Texts as ids of tokens, without a vocabulary that devices would first have to agree on: a hash numbers the words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from edge_sdk.data import is_whole
from edge_sdk.errors import UsageError

_WORD = re.compile(r"\w+")


TEXT_LENGTH = 64
"""Default number of words of a text that are kept."""


def hashed_words(texts: Iterable[str], *, vocabulary: int, length: int) -> NDArray[np.int32]:
    """Return the ids of the first `length` words of each text: (n, length).

    Ids are 1 to vocabulary - 1; shorter texts end with 0.  A word has the same id on every device, in capital
    and in small letters.  Several words may share an id (feature hashing: Weinberger et al., ICML 2009).

    Raises UsageError for a text without a word, and for numbers out of range.
    """
    if not is_whole(vocabulary) or vocabulary < 2 or not is_whole(length) or length < 1:
        raise UsageError(
            f"hashed_words: vocabulary {vocabulary!r} and length {length!r}: expected whole numbers of at least 2 and 1"
        )
    rows = [ids_of_words(text, vocabulary, length, f"hashed_words: text {number}") for number, text in enumerate(texts)]
    return np.array(rows, np.int32).reshape(-1, length)


def check_length(length: object, where: str) -> None:
    """Raise UsageError for a length of texts that keeps no word."""
    if not is_whole(length) or not isinstance(length, int | np.integer) or length < 1:
        raise UsageError(f"{where}: length {length!r}: expected a whole number of at least 1, the words that are kept")


def ids_of_words(text: object, vocabulary: int, length: int, where: str) -> list[int]:
    """Return the ids of one text, as `hashed_words` does; where: begins the message about a text without a word."""
    words = _WORD.findall(text.lower())[:length] if isinstance(text, str) else []
    if not words:
        raise UsageError(f"{where} has no word ({text!r:.40}): leave it and its label out")
    return [1 + crc32(word.encode()) % (vocabulary - 1) for word in words] + [0] * (length - len(words))
