"""Writing past the cache: every number arrives, and no other is touched, wherever the memory begins."""

from __future__ import annotations

import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch may bring no team of threads")


@pytest.mark.parametrize("begin", [0, 1, 7, 15])
@pytest.mark.parametrize("n", [0, 1, 9, 15, 16, 17, 31, 32, 33, 100])
def test_what_is_written_and_nothing_else(begin: int, n: int) -> None:
    from cutaway.nn.past_cache import BYTES, blank, carry

    source = torch.arange(1.0, 201.0)
    copied, blanked = torch.full((200,), -1.0), torch.full((200,), -1.0)
    carry(copied.data_ptr() + BYTES * begin, source.data_ptr() + BYTES * 3, n)
    blank(blanked.data_ptr() + BYTES * begin, n)
    rest = torch.full((200,), -1.0)
    assert torch.equal(copied, torch.cat((rest[:begin], source[3 : 3 + n], rest[begin + n :])))
    assert torch.equal(blanked, torch.cat((rest[:begin], torch.zeros(n), rest[begin + n :])))
