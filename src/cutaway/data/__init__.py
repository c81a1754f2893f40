"""Texts to tokens to batches."""

from cutaway.data.batches import Windows, batch
from cutaway.data.preparing import prepare
from cutaway.data.shards import Prepared, TokenStream, open_prepared

__all__ = ["Prepared", "TokenStream", "Windows", "batch", "open_prepared", "prepare"]
