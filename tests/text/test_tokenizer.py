"""Text to ids and back."""

from __future__ import annotations

import pickle
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from cutaway.errors import TokenizerError, UnsupportedError
from cutaway.text.tokenizer import ID_LIMIT, Tokenizer
from support.vocabularies import BYTES, byte_level, gpt2, llama3, sentencepiece

GPT2 = Tokenizer(gpt2(), bos_id=50256, eos_ids=frozenset({50256}), add_bos=False)
LLAMA3 = Tokenizer(llama3(), bos_id=128000, eos_ids=frozenset({128009}), add_bos=True)
SPM = {
    prefix: Tokenizer(sentencepiece(prefix), bos_id=1, eos_ids=frozenset({2}), add_bos=True)
    for prefix in ("legacy", "first", "none")
}


def test_special_tokens_in_text_are_text():
    """K1: chosen default is plain text; the control id comes only by request."""
    text = "say <|endoftext|> now"
    assert 50256 not in GPT2.encode(text)
    assert GPT2.decode(GPT2.encode(text)) == text
    assert GPT2.encode(text, special=True).count(50256) == 1
    assert GPT2.encode("<|endoftext|>", special=True) == [50256]


@pytest.mark.parametrize("tokenizer", SPM.values(), ids=SPM)
def test_special_tokens_in_text_are_text_for_sentencepiece(tokenizer: Tokenizer):
    """K1, with a vocabulary that holds the names of its control tokens."""
    ids = tokenizer.encode("he </s> <s> he", bos=False)
    assert tokenizer.special_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == "he </s> <s> he"


def test_a_control_token_that_the_model_can_reach_is_spelled_out():
    """K1: a Unigram model has its control tokens among its pieces and would choose them."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((character, -3.0) for character in "▁</s>ab")]
    backend = Backend(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="never")
    backend.decoder = decoders.Metaspace("▁", prepend_scheme="never")
    backend.add_special_tokens(["<unk>", "</s>"])
    tokenizer = Tokenizer(backend, bos_id=None, eos_ids=frozenset({1}), add_bos=False)
    ids = tokenizer.encode("a</s>b")
    assert 1 not in ids
    assert tokenizer.decode(ids) == "a</s>b"
    assert tokenizer.encode("a</s>b", special=True).count(1) == 1
    assert tokenizer.encode("ax") == [7, 0], "the unknown token stands for a character, it is not spelled out"


def test_merges_cannot_make_a_control_token():
    """K1: also where the merges would."""
    vocabulary = {**BYTES, "<s": 256, "<s>": 257}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[("<", "s"), ("<s", ">")]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>"])
    tokenizer = Tokenizer(backend, bos_id=257, eos_ids=frozenset(), add_bos=False)
    assert tokenizer.encode("<s>") == [BYTES["<"], BYTES["s"], BYTES[">"]]


def test_ordinary_added_tokens_are_still_met():
    """K1: whitespace runs, as gpt-neox has them, are added tokens too and no control tokens."""
    backend = byte_level({}, special=("<|endoftext|>",), plain=("    ", "  "))
    tokenizer = Tokenizer(backend, bos_id=None, eos_ids=frozenset({258}), add_bos=False)
    assert tokenizer.encode("a    b  c<|endoftext|>")[:5] == [BYTES["a"], 256, BYTES["b"], 257, BYTES["c"]]
    assert 258 not in tokenizer.encode("a<|endoftext|>")
    assert tokenizer.decode([256, 257]) == "      "


def test_flags_of_special_tokens_hold():
    """A token that swallows the space beside it does so; one that stands alone is not met inside a word."""
    backend = byte_level({})
    backend.add_special_tokens(
        [AddedToken("<r>", special=True, rstrip=True), AddedToken("<l>", special=True, lstrip=True)]
    )
    backend.add_special_tokens([AddedToken("word", special=True, single_word=True)])
    tokenizer = Tokenizer(backend, bos_id=None, eos_ids=frozenset(), add_bos=False)
    a = BYTES["a"]
    assert tokenizer.encode("a<r>  a  <l>a", special=True) == [a, 256, a, 257, a]
    assert tokenizer.encode("a word a", special=True).count(258) == 1
    assert tokenizer.encode("awordy", special=True).count(258) == 0
    assert tokenizer.decode(tokenizer.encode("awordy", special=True)) == "awordy"


def test_spaces_before_punctuation_stay():
    """K2: the ids of GPT-2 and Llama 3, and text as it was."""
    assert GPT2.encode(" ?") == [5633]
    assert GPT2.decode([5633]) == " ?"
    assert LLAMA3.encode("hello !") == [128000, 15339, 758]
    assert LLAMA3.decode([128000, 15339, 758], skip_special=True) == "hello !"
    for text in ("the word 'social'", "party . . . in", "do n't"):
        assert LLAMA3.decode(LLAMA3.encode(text), skip_special=True) == text


def test_ids_past_the_vocabulary_are_no_text():
    """K5: chosen is an empty string; the bound is the largest id + 1, and ids may have holes."""
    assert GPT2.d_vocab == 50257
    a = BYTES["a"]
    assert GPT2.decode([a, 50257, a, 60000, 1000, a]) == "aaa"
    assert GPT2.token_bytes(50300) == b""
    assert GPT2.token_text(50300) == "[50300]"
    assert LLAMA3.decode([128300, a], skip_special=True) == "a"


def test_an_odd_vocabulary_works_as_an_even_one():
    """X25, the part of the text: 257 and 258 entries give the same ids and the same text."""
    odd = Tokenizer(byte_level({}, special=("<a>",)), bos_id=256, eos_ids=frozenset(), add_bos=True)
    even = Tokenizer(byte_level({}, special=("<a>", "<b>")), bos_id=256, eos_ids=frozenset(), add_bos=True)
    assert (odd.d_vocab, even.d_vocab) == (257, 258)
    assert odd.encode("odd <a> even") == even.encode("odd <a> even")
    assert odd.decode(range(260)) + "<b>" == even.decode(range(260))


def test_holes_in_the_ids_take_no_new_tokens():
    """Control tokens get no names that share an id with a word, however sparse the ids are."""
    backend = Backend(models.BPE(vocab={"a": 0, "b": 1, "<s>": 2, "c": 4, "d": 5}, merges=[]))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["<s>"])  # five entries, so the library would give a new token id 5
    tokenizer = Tokenizer(backend, bos_id=2, eos_ids=frozenset(), add_bos=False)
    assert tokenizer.encode("dc<s>ab", special=True) == [5, 4, 2, 0, 1]
    assert tokenizer.decode([5, 4, 2, 0, 1, 3, 6]) == "dc<s>ab"
    assert tokenizer.d_vocab == 6


@pytest.mark.parametrize("bad", [-1, 2**31, 2**63, 2**200, 1.5, "a", None])
def test_what_is_no_id_is_refused(bad: object):
    with pytest.raises(TokenizerError):
        GPT2.decode([0, bad])  # type: ignore[list-item]


def test_bos_comes_once():
    """S10: as the model wants it, or as asked, and never twice."""
    hello = [15339]
    bos = [128000]
    assert LLAMA3.encode("hello") == bos + hello
    assert LLAMA3.encode("hello", bos=False) == hello
    assert LLAMA3.encode("<|begin_of_text|>hello", special=True) == bos + hello
    assert LLAMA3.encode("<|begin_of_text|>hello", special=True, bos=True) == bos + hello
    assert LLAMA3.encode("") == bos
    assert GPT2.encode("") == []
    assert GPT2.encode("a", bos=True) == [50256, BYTES["a"]]
    assert 128009 not in LLAMA3.encode("hello"), "an end is never added"


def test_a_missing_bos_is_named():
    tokenizer = Tokenizer(byte_level({}), bos_id=None, eos_ids=frozenset(), add_bos=False)
    with pytest.raises(TokenizerError, match="no BOS"):
        tokenizer.encode("a", bos=True)
    with pytest.raises(TokenizerError, match="add_bos_token"):
        Tokenizer(byte_level({}), bos_id=None, eos_ids=frozenset(), add_bos=True)


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_byte_level_text_comes_back(text: str):
    """X1, X9: any text, with no normalization of our own."""
    assert GPT2.decode(GPT2.encode(text)) == text
    assert LLAMA3.decode(LLAMA3.encode(text), skip_special=True) == text


@settings(max_examples=100)
@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="▁")))
def test_sentencepiece_text_comes_back(text: str):
    """All of it, but for one space at the start under the `first` scheme, which gives " a" the ids of "a"."""
    for prefix, tokenizer in SPM.items():
        if prefix == "first" and text.startswith(" "):
            continue
        assert tokenizer.decode(tokenizer.encode(text), skip_special=True) == text


@pytest.mark.parametrize("text", ["ab\0cd", "\ufe30", "e\u0301", "\u00e9", "\ufeffa", "a\r\nb", "\u2028"])
def test_nothing_is_normalized(text: str):
    """X1: NUL stays. X9: U+FE30 and e + U+0301 stay what they are."""
    assert GPT2.decode(GPT2.encode(text)) == text


def test_lone_surrogates_become_the_replacement_character():
    """X10: half of a pair is U+FFFD, a pair is its character."""
    assert GPT2.decode(GPT2.encode("a\ud83d")) == "a\ufffd"
    assert GPT2.decode(GPT2.encode("\udc4d\ud83d!")) == "\ufffd\ufffd!"
    assert GPT2.decode(GPT2.encode("\ud83d\udc4d")) == "👍"
    assert GPT2.encode("\ud83d\udc4d") == GPT2.encode("👍")


def test_bytes_of_a_token():
    """Every byte-level token is its bytes; SentencePiece's spaces and byte tokens are what they stand for."""
    assert [LLAMA3.token_bytes(i) for i in (15339, 758, 128009)] == [b"hello", b" !", b"<|eot_id|>"]
    assert [GPT2.token_bytes(i) for i in range(256)] == [bytes([byte]) for byte in GPT2_BYTES]
    spm = SPM["legacy"]
    he, newline = spm.backend.token_to_id("▁he"), spm.backend.token_to_id("<0x0A>")
    assert [spm.token_bytes(he), spm.token_bytes(newline)] == [b" he", b"\n"]
    assert GPT2.token_text(BYTES["Ċ"]) == "\n"
    assert GPT2.token_text(BYTES["ð"]) == r"\xf0", "a part of a character is shown as its byte"


GPT2_BYTES = [*range(33, 127), *range(161, 173), *range(174, 256), *range(33), *range(127, 161), 173]


def test_added_tokens_are_their_own_text():
    """An added token with a letter of the byte alphabet in it is decoded as written, not as bytes."""
    tokenizer = Tokenizer(byte_level({}, plain=("né",)), bos_id=None, eos_ids=frozenset(), add_bos=False)
    assert tokenizer.encode("né") == [256]
    assert tokenizer.decode([256]) == "né"


def test_only_the_prefix_space_is_dropped():
    """A text's own leading spaces stay, and so does the one before a word that goes on."""
    spm = SPM["legacy"]
    for text in ("he", " he", "   he", ""):
        assert spm.decode(spm.encode(text, bos=False)) == text
    he = spm.backend.token_to_id("▁he")
    assert spm.decode([he]) == "he"
    assert spm.decode([he], continues=True) == " he"


def test_skipping_special_tokens():
    ids = LLAMA3.encode("<|begin_of_text|>hello<|eot_id|>", special=True)
    assert LLAMA3.decode(ids) == "<|begin_of_text|>hello<|eot_id|>"
    assert LLAMA3.decode(ids, skip_special=True) == "hello"


def test_tokens_of_a_template_are_controls_yet_not_hidden():
    """K1: `<think>` is no special token, but a template writes it; a user cannot, and a reader still sees it."""
    backend = byte_level({}, plain=("<think>", "<other>", "  "), special=("<|end|>",))
    template = "{% if x %}  <think>{% endif %}"
    tokenizer = Tokenizer(backend, bos_id=None, eos_ids=frozenset({259}), add_bos=False, chat_template=template)
    assert 256 not in tokenizer.encode("<think>")
    assert tokenizer.encode("<think>", special=True) == [256]
    assert tokenizer.encode("<other>  ") == [257, 258], "other added tokens are words like any"
    assert tokenizer.decode([256, 259], skip_special=True) == "<think>"


def test_a_length_limit_in_the_file_is_not_followed():
    """Truncation and padding that a tokenizer.json brings would silently change a prompt."""
    backend = gpt2()
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    tokenizer = Tokenizer(backend, bos_id=None, eos_ids=frozenset(), add_bos=False)
    assert tokenizer.decode(tokenizer.encode("abc")) == "abc"
    assert len(tokenizer.encode("abc")) == 3


def test_threads_do_not_disturb_each_other():
    """Control ids by request in one thread, never by text in another."""
    wrong = []

    def work(special: bool) -> None:
        for _ in range(300):
            if (50256 in GPT2.encode("a<|endoftext|>", special=special)) is not special:
                wrong.append(special)

    threads = [threading.Thread(target=work, args=(n % 2 == 0,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_copy_keeps_text_and_control_apart():
    """K1: also in another process, where a pickle brings the tokenizer."""
    copied = pickle.loads(pickle.dumps(GPT2))
    assert copied.d_vocab == GPT2.d_vocab
    assert copied.encode("a<|endoftext|> ?") == GPT2.encode("a<|endoftext|> ?")
    assert copied.encode("<|endoftext|>", special=True) == [50256]
    assert copied.decode([5633, 50256]) == " ?<|endoftext|>"


def test_unusable_backends_are_named():
    words = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    words.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedError, match="WordPiece"):
        Tokenizer(words, bos_id=None, eos_ids=frozenset(), add_bos=False)
    with pytest.raises(TokenizerError, match="no tokens"):
        Tokenizer(Backend(models.BPE()), bos_id=None, eos_ids=frozenset(), add_bos=False)
    far = Backend(models.BPE(vocab={"a": ID_LIMIT}, merges=[]))
    with pytest.raises(TokenizerError, match=str(ID_LIMIT)):
        Tokenizer(far, bos_id=None, eos_ids=frozenset(), add_bos=False)


def test_text_outside_a_closed_vocabulary_is_named():
    words = Backend(models.WordLevel({"a": 0}, unk_token="?"))
    tokenizer = Tokenizer(words, bos_id=None, eos_ids=frozenset(), add_bos=False)
    with pytest.raises(TokenizerError, match="cannot encode 'b'"):
        tokenizer.encode("b")
    words = Backend(models.WordLevel({"a": 0, "<s>": 1}, unk_token="?"))
    words.add_special_tokens(["<s>"])
    tokenizer = Tokenizer(words, bos_id=1, eos_ids=frozenset(), add_bos=False)
    with pytest.raises(TokenizerError, match="cannot encode '<s>b'"):
        tokenizer.encode("<s>b", special=True)


def test_words_without_a_decoder_are_set_apart():
    """A tokenizer that states no decoder writes its tokens with spaces between, as the tokenizers library does."""
    words = Backend(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(words, bos_id=None, eos_ids=frozenset(), add_bos=False)
    assert tokenizer.decode(tokenizer.encode("a b  b")) == "a b b"


def test_a_byte_without_a_token_is_refused_not_dropped() -> None:
    """A vocabulary with holes (SmolLM2 lacks eight bytes): the library drops them silently."""
    backend = Backend(models.BPE({"a": 0, "b": 1}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = Tokenizer(backend, bos_id=None, eos_ids=frozenset(), add_bos=False)
    assert tokenizer.encode("ab") == [0, 1]
    with pytest.raises(TokenizerError, match="0x04"):
        tokenizer.encode("a\x04b")


def test_ids_may_come_in_a_tensor():
    """A tensor of one id is found in no set, because it is equal to a number and hashed by what it is."""
    for tokenizer in (GPT2, LLAMA3, SPM["legacy"]):
        first = min(tokenizer.special_ids)
        ids = [first, *tokenizer.encode("he ?", bos=False), first]
        tensor = torch.tensor(ids)
        for skip_special in (True, False):
            assert tokenizer.decode(tensor, skip_special=skip_special) == tokenizer.decode(
                ids, skip_special=skip_special
            )
        assert "<" not in tokenizer.decode(tensor, skip_special=True)
        assert tokenizer.token_text(tensor[0]) == tokenizer.token_text(first)
    with pytest.raises(TokenizerError, match=r"tensor\(1\.5000\) is no token id"):
        GPT2.decode(torch.tensor([1.5]))


@pytest.mark.parametrize("tokenizer", [GPT2, *SPM.values()])
def test_neither_a_number_nor_nothing_is_text_or_ids(tokenizer: Tokenizer):
    for tokens in (5, None, torch.tensor(5)):
        with pytest.raises(TokenizerError, match="is no list of token ids; give whole numbers"):
            tokenizer.decode(tokens)
    for text in (5, None, b"a"):
        for special in (False, True):
            with pytest.raises(TokenizerError, match="is no text to encode; give a string"):
                tokenizer.encode(text, special=special)
