"""Tokens as they are seen: the bytes of one character stand together."""

from __future__ import annotations

import pytest

from cutaway.data.vocabulary import train_tokenizer
from cutaway.inside.labels import label, labels
from cutaway.text.ids import IdTokenizer
