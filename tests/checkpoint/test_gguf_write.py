"""GGUF files written by Cutaway: read back exactly, by itself and by three other readers."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import cutaway
from cutaway.checkpoint.gguf import GGUFFile
from cutaway.checkpoint.gguf_write import save_gguf
from cutaway.config import (
    AttentionConfig,
    FeedForwardConfig,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ModelConfig,
    RotaryConfig,
    WindowMaskConfig,
    YarnScaling,
)
from cutaway.errors import CheckpointError, ConfigError, TokenizerError, UnsupportedError
from cutaway.network import Transformer
from cutaway.text.gguf_tokenizer import WORD_RULES, WordRule, tokenizer_from_gguf
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer
from support.gguf_files import GPT2, LLAMA
from support.tiny import OURS, distance, random_network, random_tokens

TEXTS = (
    "To be, or not to be: that is the question.",
    "3333+777=4110\n\n\tdon't  stop \r\n",
    "naïve 😸 Ὀδυσσεύς 東京\u00a0½",
    "<|end|> is text here",
)


KINDS = {"gpt2": GPT2, "llama": LLAMA}

LLAMAS: dict[str, ModelConfig] = {
    "llama": LLAMA,
    "tied, biases": replace(
        LLAMA,
        tied=True,
        attention=AttentionConfig(qkv_bias=True, out_bias=True),
        feedforward=FeedForwardConfig(activation="silu", gated=True, bias=True),
    ),
    "a window as long as the context": replace(LLAMA, mask=WindowMaskConfig(size=LLAMA.n_ctx)),
    "linear": replace(LLAMA, position=RotaryConfig(theta=500.0, scaling=LinearScaling(factor=4.0))),
    "llama3": replace(
        LLAMA,
        position=RotaryConfig(
            scaling=Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, n_ctx_original=32)
        ),
    ),
    "yarn": replace(
        LLAMA,
        position=RotaryConfig(
            scaling=YarnScaling(factor=4.0, n_ctx_original=16, attention_factor=1.138629436, beta_fast=16.0)
        ),
    ),
    "one divisor a frequency": replace(
        LLAMA,
        position=RotaryConfig(
            scaling=LongRopeScaling(
                short_factor=(1.0, 1.5, 2.0, 8.0),
                long_factor=(1.0, 1.5, 2.0, 8.0),
                n_ctx_original=64,
                attention_factor=1.0,
            )
        ),
    ),
}


def byte_level(
    *, rule: WordRule = WORD_RULES["gpt-2"], special: tuple[str, ...] = ("<|end|>",), plain: tuple[str, ...] = ()
) -> Tokenizer:
    """Byte-level BPE with a few merges."""
    backend = Backend(models.BPE(ignore_merges=rule.whole_words))
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rule.patterns]
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, bytes_alone])
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([" the question that is to be " * 2], trainer)
    backend.add_tokens([AddedToken(name, special=False, normalized=False) for name in plain])
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    end = backend.token_to_id("<|end|>")
    return Tokenizer(backend, bos_id=None, eos_ids=frozenset({end}), add_bos=False)


def written(path: Path, config: ModelConfig, **options: Any) -> tuple[Transformer, Path]:
    network = random_network(config)
    save_gguf(network, path, **{"tokenizer": IdTokenizer(config.d_vocab), **options})
    return network, path


def logits(network: Transformer, tokens: Tensor) -> Tensor:
    with torch.inference_mode():
        return network(tokens)


# --- read back -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [GPT2, replace(GPT2, tied=False), *LLAMAS.values()])
def test_f32_goes_round_bit_for_bit(config: ModelConfig, tmp_path: Path) -> None:
    """C2: with 8 query and 2 key heads of 8. Llama 3's scaling comes back worked out: equal in effect, not in form."""
    network, path = written(tmp_path / "model.gguf", config)
    again = cutaway.load(path)
    tokens = random_tokens(2, 40, d_vocab=300)
    assert not again.report.unused
    assert not again.report.notes
    if isinstance(config.positions[0], RotaryConfig) and isinstance(config.positions[0].scaling, Llama3Scaling):
        assert distance(logits(again.network, tokens), logits(network, tokens)) <= 1e-5
    else:
        assert torch.equal(logits(again.network, tokens), logits(network, tokens))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
def test_small_types_go_round_as_the_library_rounds_them(kind: str, dtype: str, tmp_path: Path) -> None:
    network, path = written(tmp_path / "model.gguf", KINDS[kind], dtype=dtype)
    _, exact = written(tmp_path / "exact.gguf", KINDS[kind])
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(exact).tensors}
    with GGUFFile(path) as file:
        kinds = {info.type_name for info in file.tensors.values()}
        assert kinds == {"F32", dtype.upper()}
        for name, info in file.tensors.items():
            theirs = gguf.GGMLQuantizationType[info.type_name]
            rounded = gguf.quants.dequantize(gguf.quants.quantize(stored[name].data, theirs), theirs)
            assert np.array_equal(file.read(name, torch.float32).numpy(), rounded), name
    tokens = random_tokens(2, 40, d_vocab=300)
    again = cutaway.load(path, dtype="float32").network
    assert 0 < distance(logits(again, tokens), logits(network, tokens)) < (0.005 if dtype == "f16" else 0.1)


def test_rows_that_blocks_do_not_tile_are_halved_instead(tmp_path: Path) -> None:
    _, path = written(tmp_path / "model.gguf", replace(LLAMA, d_ff=40), dtype="q8_0")
    with GGUFFile(path) as file:
        kinds = {name: info.type_name for name, info in file.tensors.items()}
    assert (kinds["blk.0.ffn_down.weight"], kinds["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")
    assert kinds["blk.0.ffn_norm.weight"] == "F32"


@pytest.mark.parametrize(("dtype", "stored"), [("float32", "f32"), ("bfloat16", "f32"), ("float16", "f16")])
def test_without_a_type_no_number_changes(dtype: str, stored: str, tmp_path: Path) -> None:
    network = random_network(LLAMA).to(getattr(torch, dtype))
    assert save_gguf(network, tmp_path / "model.gguf", tokenizer=IdTokenizer(300)).dtype == stored
    again = dict(cutaway.load(tmp_path / "model.gguf", dtype="float32").network.named_parameters())
    for name, parameter in network.named_parameters():
        assert torch.equal(again[name], parameter.float()), name


# --- other readers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_reads_names_shapes_and_metadata(kind: str, tmp_path: Path) -> None:
    """C2: rows 0-7 of a head lie as 0 4 1 5 2 6 3 7, in q by its 8 heads and in k by its 2; v is not touched."""
    network, path = written(tmp_path / "tiny.gguf", KINDS[kind], tokenizer=byte_level())
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
    ours = dict(network.named_parameters())
    assert torch.equal(tensors["token_embd.weight"], ours["embed.weight"])
    by_name = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[by_name[kind]]}
    for name in tensors:
        stem = name.rsplit(".", 1)[0]
        assert (f"blk.{{bid}}.{stem.split('.', 2)[2]}" if stem.startswith("blk.") else stem) in known, name
    values = {key: field.contents() for key, field in reader.fields.items()}
    assert values["general.architecture"] == kind
    assert values["general.name"] == "tiny"
    assert values[f"{kind}.vocab_size"] == len(values["tokenizer.ggml.tokens"]) == 300
    assert values["tokenizer.ggml.pre"] == "gpt-2"
    if kind == "llama":
        q, k, v = ours["blocks.0.attn.qkv.weight"].split((64, 16, 16))
        order = [0, 4, 1, 5, 2, 6, 3, 7]
        assert torch.equal(tensors["blk.0.attn_q.weight"], q.view(8, 8, 64)[:, order].reshape(64, 64))
        assert torch.equal(tensors["blk.0.attn_k.weight"], k.view(2, 8, 64)[:, order].reshape(16, 64))
        assert torch.equal(tensors["blk.0.attn_v.weight"], v)


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_the_same_model(kind: str, tmp_path: Path) -> None:
    """A gpt2 of any other length has to be told to it: it does not read the field."""
    network, path = written(tmp_path / "tiny.gguf", replace(KINDS[kind], n_ctx=1024), tokenizer=byte_level())
    peer = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).eval()
    tokens = random_tokens(2, 40, d_vocab=300)
    with torch.inference_mode():
        assert distance(logits(network, tokens), peer(tokens).logits) <= 1e-5
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    for text in TEXTS[:3]:
        assert theirs.encode(text, add_special_tokens=False) == byte_level().encode(text)


def gelu_by_table(x: Tensor) -> Tensor:
    """GELU as ggml computes it on a CPU: looked up in a table from half precision to half precision."""
    y = F.gelu(x.half().float(), approximate="tanh").half().float()
    return torch.where(x <= -10, 0.0, torch.where(x >= 10, x, y))


@pytest.mark.parametrize("name", ["gpt2", *(name for name in LLAMAS if "window" not in name)])
def test_llama_cpp_computes_the_same_model(name: str, tmp_path: Path) -> None:
    """llama.cpp itself: equal ids, logits to 1e-5, equal greedy tokens.

    Its GELU comes out of a table in half precision, so a gpt2 differs by up to a step of that, 1e-3. With the same
    table here it is 1e-5 again, but for positions where some number lay so near the middle of two entries that the
    last bit of a sum chose another.
    """
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed; it builds in 10 minutes")
    tokenizer = byte_level()
    config = replace(GPT2 if name == "gpt2" else LLAMAS[name], n_ctx=256)
    network, path = written(tmp_path / "tiny.gguf", config, tokenizer=tokenizer)
    ours = cutaway.load(path)
    if name == "gpt2":
        for block in network.blocks:
            block.ff.activation = gelu_by_table
    # Keys and values in full, and no fused attention, which would halve them.
    options = {"type_k": 0, "type_v": 0, "flash_attn": False, "n_ctx": 256, "n_threads": 1, "n_gpu_layers": 0}
    peer = llama_cpp.Llama(str(path), logits_all=True, verbose=False, **options)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert peer.tokenize(text.encode(), add_bos=False, special=False) == ids
        peer.reset()
        peer.eval(ids)
        theirs = torch.from_numpy(peer.scores[: len(ids)].copy())
        assert distance(ours.logits(ids), theirs) <= (1e-3 if name == "gpt2" else 1e-5)
        by_position = torch.tensor(list(map(distance, logits(network, torch.tensor([ids]))[0], theirs)))
        assert (by_position.min() if name == "gpt2" else by_position.max()) <= 1e-5
        greedy = ours.generate(ids, max_tokens=16, temperature=0).tokens
        assert list(itertools.islice(peer.generate(ids, top_k=1, temp=0.0), len(greedy))) == greedy
    peer.close()


@pytest.mark.parametrize("rule", dict.fromkeys(WORD_RULES.values()))
def test_llama_cpp_reads_the_same_words(rule: WordRule, tmp_path: Path) -> None:
    """X11: for every rule that has a name, and with the begin token that the file asks for."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed; it builds in 10 minutes")
    tokenizer = byte_level(rule=rule)
    tokenizer.bos_id, tokenizer.add_bos = tokenizer.eos_id, True
    _, path = written(tmp_path / "tiny.gguf", LLAMA, tokenizer=tokenizer)
    peer = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    for text in (
        *TEXTS,
        "DON'T I'LL we've",
        "e\u0301 한국어 हिन्दी 👩\u200d👧 x½Ⅷ",
        "++--==// foo_bar\n\n\n d\r\n\te 12345678",
    ):
        assert peer.tokenize(text.encode(), add_bos=True, special=False) == tokenizer.encode(text)
        assert peer.detokenize(tokenizer.encode(text, bos=False)).decode() == text
    peer.close()


# --- the tokenizer -------------------------------------------------------------------------------------------------


def test_the_tokenizer_goes_along(tmp_path: Path) -> None:
    """X11: ids and text are the same before and after, and rows without a token get an unused one."""
    tokenizer = byte_level(special=("<|begin|>", "<|end|>"), plain=("<think>",))
    begin = tokenizer.backend.token_to_id("<|begin|>")
    tokenizer = Tokenizer(
        Backend.from_str(json.dumps(tokenizer.backend_state())),
        bos_id=begin, eos_ids=tokenizer.eos_ids, pad_id=begin, add_bos=True, chat_template="{{ bos_token }}<think>",
    )  # fmt: skip
    _, path = written(tmp_path / "tiny.gguf", LLAMA, tokenizer=tokenizer)
    again = cutaway.load(path).tokenizer
    assert isinstance(again, Tokenizer)
    for text in (*TEXTS, "a<think>b<|end|>"):
        for special in (False, True):
            assert again.encode(text, special=special) == tokenizer.encode(text, special=special)
        assert again.decode(again.encode(text, bos=False)) == text
    names = ("bos_id", "eos_id", "eos_ids", "pad_id", "add_bos", "chat_template")
    assert [getattr(again, name) for name in names] == [getattr(tokenizer, name) for name in names]
    assert again.backend.id_to_token(299) == "[PAD299]"
    assert again.d_vocab == 300


def test_no_tokenizer_is_said_in_the_file(tmp_path: Path) -> None:
    _, path = written(tmp_path / "tiny.gguf", LLAMA)
    with GGUFFile(path) as file:
        assert file.metadata["tokenizer.ggml.model"] == "no_vocab"
        assert file.metadata["llama.vocab_size"] == 300
    assert cutaway.load(path).encode("7 8") == [7, 8]


def test_a_sentencepiece_tokenizer_goes_from_file_to_file(tmp_path: Path) -> None:
    """Its scores stand in no tokenizer.json, so they are taken from the file it came in."""
    pieces = {"▁": -9.0, "t": -8.0, "o": -8.5, "b": -9.0, "e": -7.0, "to": -1.0, "▁to": -2.0}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    source = tmp_path / "source.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + list(pieces.values()))
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(pieces))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with GGUFFile(source) as file:
        tokenizer = tokenizer_from_gguf(file.metadata)
    assert tokenizer is not None
    _, path = written(tmp_path / "tiny.gguf", LLAMA, tokenizer=tokenizer, source=source)
    again = cutaway.load(path)
    assert again.encode("to be 😸 to") == tokenizer.encode("to be 😸 to")
    assert again.tokenizer.eos_ids == {2}
    with pytest.raises(UnsupportedError, match="of the kind SentencePiece"):
        save_gguf(random_network(LLAMA), path, tokenizer=tokenizer)


def test_more_tokens_than_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"275 tokens, the model 67 rows"):
        written(tmp_path / "tiny.gguf", OURS["grouped"], tokenizer=byte_level())
    assert not list(tmp_path.iterdir())


# --- what is refused, and how files are written --------------------------------------------------------------------


@pytest.mark.parametrize(("value", "dtype"), [(7e4, "f16"), (1e7, "q8_0"), (float("nan"), "q8_0")])
def test_weights_that_a_type_cannot_hold_are_refused(value: float, dtype: str, tmp_path: Path) -> None:
    network = random_network(LLAMA)
    with torch.no_grad():
        network.blocks[1].attn.out.weight[3, 3] = value
    with pytest.raises(UnsupportedError, match=r"blk\.1\.attn_output\.weight holds .*choose dtype f32"):
        save_gguf(network, tmp_path / "model.gguf", tokenizer=IdTokenizer(300), dtype=dtype)
    assert not list(tmp_path.iterdir())


def test_other_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'bfloat16': a GGUF file is written in f32, f16 or q8_0"):
        written(tmp_path / "model.gguf", LLAMA, dtype="bfloat16")


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, path = written(tmp_path / "model.gguf", LLAMA)
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save_gguf(network, path, tokenizer=IdTokenizer(300), dtype="q8_0")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.gguf"]
    assert path.read_bytes() == before
