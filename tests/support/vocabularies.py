"""Small tokenizers of each kind, with the ids of the real ones where a case names them."""

from __future__ import annotations

from itertools import count

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from cutaway.text.pieces import BYTE_OF_CHARACTER

BYTES = {character: i for i, character in enumerate(BYTE_OF_CHARACTER)}  # ids 0 to 255, in GPT-2 and Llama 3 alike


def byte_level(words: dict[str, int], special: tuple[str, ...] = (), plain: tuple[str, ...] = ()) -> Backend:
    """Byte-level BPE that knows these words (in the byte alphabet), each built from its left to its right."""
    vocabulary, merges, spare = dict(BYTES), [], count(300)
    for word, i in words.items():
        for end in range(2, len(word) + 1):
            merges.append((word[: end - 1], word[end - 1]))
            vocabulary[word[:end]] = i if end == len(word) else next(spare)
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(name, special=False, normalized=False) for name in plain])
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return backend


def gpt2() -> Backend:
    """An excerpt of GPT-2: the bytes, " ?" and the end of text, under their own ids."""
    backend = byte_level({"Ġ?": 5633})
    return with_ids(backend, {"<|endoftext|>": 50256})


def llama3() -> Backend:
    """An excerpt of Llama 3: the bytes, "hello", " !" and the control tokens, under their own ids."""
    names = {
        "<|begin_of_text|>": 128000,
        "<|start_header_id|>": 128006,
        "<|end_header_id|>": 128007,
        "<|eot_id|>": 128009,
    }
    backend = with_ids(byte_level({"hello": 15339, "Ġ!": 758}), names)
    bos = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A <|begin_of_text|> $B",
        special_tokens=[("<|begin_of_text|>", 128000)],
    )
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), bos])
    return backend


def with_ids(backend: Backend, names: dict[str, int]) -> Backend:
    """The same BPE with special tokens under ids far from the others."""
    import json

    state = json.loads(backend.to_str())
    state["model"]["vocab"] |= names
    fresh = Backend.from_str(json.dumps(state))
    fresh.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return fresh


SPM = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abdehilnorstuy,!?<>/[]INST|m_"]


def sentencepiece(prefix: str = "legacy") -> Backend:
    """BPE with byte fallback and spaces written as ▁; a space goes before the text unless `prefix` is "none".

    legacy: before the text and after every special token. first: before the text alone. none: nowhere (Gemma).
    """
    vocabulary = {token: i for i, token in enumerate([*SPM, "he", "▁he", "▁▁"])}
    merges = [("h", "e"), ("▁", "he"), ("▁", "▁")]
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    space = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix == "legacy":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space])
    elif prefix == "first":
        backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    else:
        backend.normalizer = space
    backend.decoder = decoders.Sequence(steps if prefix == "none" else [*steps, decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPM[:3]])
    return backend
