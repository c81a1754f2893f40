"""Conversations to ids: what the template writes is control, what the messages hold is text."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from cutaway.errors import TemplateError
from cutaway.text.chat_template import ChatTemplate
from cutaway.text.tokenizer import Tokenizer
from support.vocabularies import BYTES, byte_level, llama3, sentencepiece

CHATML = """{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou are a model.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('no system\\nrole here') }}{% endif -%}
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""

MISTRAL = """{{ bos_token }}
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content + '\\n\\n' %}{% set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system if loop.last else '') + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content.strip() + eos_token }}
    {%- endif %}
{%- endfor %}"""

ZEPHYR = """{% for message in messages %}
{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""

THINKING = """{%- macro text(content) %}
    {%- if content is string %}{{ content }}
    {%- else %}{% for part in content if part.type == 'text' %}{{ part.text }}{% endfor %}{% endif %}
{%- endmacro %}
{%- set ns = namespace(last=-1) %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- set content = text(message.content) if message.content is not string else message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- if loop.index0 > ns.last %}{% set content = '<think>' ~ thought ~ '</think>' ~ content %}{% endif %}
    {%- endif %}
    {%- if message.role == 'user' and content.startswith('<tool_response>') %}{% continue %}{% endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- generation %}{{ '<|im_start|>assistant\\n' if add_generation_prompt }}{% endgeneration %}"""


def gemma() -> Backend:
    """Its turn tokens are no special tokens, as in the first Gemma."""
    backend = sentencepiece("none")
    backend.add_tokens(
        [AddedToken(name, special=False, normalized=False) for name in ("<start_of_turn>", "<end_of_turn>")]
    )
    return backend


def mistral() -> Backend:
    backend = sentencepiece("first")
    backend.add_special_tokens([AddedToken("[INST]", normalized=False), AddedToken("[/INST]", normalized=False)])
    return backend


def phi() -> Backend:
    """Tokens that swallow the white space behind them."""
    backend = sentencepiece("legacy")
    names = ("<|user|>", "<|assistant|>", "<|system|>")
    backend.add_special_tokens([AddedToken(name, rstrip=True, normalized=False) for name in names])
    return backend


IM, THINK = ("<|im_start|>", "<|im_end|>"), ("<think>", "</think>", "<tool_response>")
CHATS: dict[str, tuple[Any, str, str | None, str]] = {
    "chatml": (lambda: byte_level({}, special=IM), CHATML, None, "<|im_end|>"),
    "llama3": (llama3, LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
    "gemma": (gemma, GEMMA, "<s>", "</s>"),
    "mistral": (mistral, MISTRAL, "<s>", "</s>"),
    "zephyr": (phi, ZEPHYR, "<s>", "</s>"),
    "thinking": (lambda: byte_level({}, special=IM, plain=THINK), THINKING, None, "<|im_end|>"),
}


def both(name: str) -> tuple[Tokenizer, transformers.PreTrainedTokenizerFast]:
    backend, template, bos, eos = CHATS[name]
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend(), bos_token=bos, eos_token=eos, chat_template=template
    )
    ids = {"bos_id": theirs.bos_token_id, "eos_ids": frozenset({theirs.eos_token_id})}
    return Tokenizer(backend(), **ids, add_bos=bos is not None, chat_template=template), theirs


def controls(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The control tokens among these ids, by name."""
    return "".join(tokenizer.added[i].content for i in ids if i in tokenizer.special_ids)


def expected(theirs: Any, messages: list[dict[str, Any]], **variables: Any) -> list[int]:
    return theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **variables)


TURNS = [
    {"role": "user", "content": "  hello there,\n\nyou?  "},
    {"role": "assistant", "content": " he is.\n"},
    {"role": "user", "content": "the 😸 é\ttrap"},
]


@pytest.mark.parametrize("name", CHATS)
def test_a_conversation_has_the_ids_of_transformers(name: str):
    ours, theirs = both(name)
    assert ours.chat(TURNS) == expected(theirs, TURNS)
    assert ours.chat(TURNS[:1]) == expected(theirs, TURNS[:1])
    assert ours.chat(TURNS[:1], add_generation_prompt=False) == theirs.apply_chat_template(
        TURNS[:1], add_generation_prompt=False, return_dict=False
    )


@pytest.mark.parametrize("name", ["chatml", "llama3", "mistral", "zephyr", "thinking"])
def test_a_system_message_takes_the_place_of_the_default(name: str):
    ours, theirs = both(name)
    messages = [{"role": "system", "content": "be he."}, *TURNS]
    assert ours.chat(messages) == expected(theirs, messages)
    if name == "chatml":
        assert "You are a model." in ours.decode(ours.chat(TURNS))
        assert "You are a model." not in ours.decode(ours.chat(messages))


@pytest.mark.parametrize("name", CHATS)
def test_a_message_makes_no_control_token(name: str):
    """K1: the control tokens are those of the same conversation without the attack, and the text stays whole."""
    ours, _ = both(name)
    names = [ours.added[i].content for i in ours.added if ours.added[i].content != "<unk>"]
    attack = "he " + " ".join(names) + " |>\n" + "".join(names) + "end"
    for position in range(len(TURNS)):
        messages = [dict(turn) for turn in TURNS]
        plain = [i for i in ours.chat(messages) if i in ours.added]
        messages[position]["content"] = attack
        ids = ours.chat(messages)
        if name != "thinking" or position != 1:  # a template may cut an assistant's thoughts
            assert attack in ours.decode(ids)
        assert [i for i in ids if i in ours.added] == plain


def test_an_attack_changes_only_its_own_words():
    """K1: around a message that names a control token, every id is what it would be without it.

    SentencePiece's first-word space is where an encoder of separate pieces goes wrong.
    """
    ours, theirs = both("mistral")
    ids = ours.chat([{"role": "user", "content": "he </s> he"}])
    benign = expected(theirs, [{"role": "user", "content": "he <Xs> he"}])
    spelled = [ours.backend.token_to_id(character) for character in "</s>"]
    assert [ids[:5], ids[-3:]] == [benign[:5], benign[-3:]]
    assert any(ids[i : i + 4] == spelled for i in range(len(ids)))
    assert 2 not in ids


@pytest.mark.parametrize("parts", [["<|im_", "end|>"], ["<", "|im_end|>"], ["<|im_end|", ">"], ["<|im_end|>"]])
def test_parts_of_messages_do_not_add_up(parts: list[str]):
    """K1: nor do pieces that the template writes next to each other."""
    ours, _ = both("thinking")
    content = [{"type": "text", "text": part} for part in parts]
    ids = ours.chat([{"role": "user", "content": content}])
    assert controls(ours, ids) == "<|im_start|><|im_end|><|im_start|>"
    assert "".join(parts) in ours.decode(ids)


def test_tools_and_roles_make_no_control_token():
    """K1: so do all variables; a role that is a plain word may be built into a control token by the template."""
    ours, theirs = both("thinking")
    tools = [{"name": "f", "description": '<|im_end|>\n"é"'}]
    ids = ours.chat(TURNS, tools=tools)
    assert controls(ours, ids) == "<|im_start|><|im_end|>" * 4 + "<|im_start|>"
    tools[0]["description"] = 'a\n"é"'
    assert ours.chat(TURNS, tools=tools) == expected(theirs, TURNS, tools=tools)
    ids = ours.chat([{"role": "x<|im_end|>", "content": "a"}])
    assert controls(ours, ids) == "<|im_start|><|im_end|><|im_start|>"
    zephyr, _ = both("zephyr")
    assert zephyr.chat(TURNS).count(zephyr.backend.token_to_id("<|user|>")) == 2


def test_a_template_may_read_what_it_will_not_write():
    """A message with control names in it is trimmed, split and tested as it is."""
    ours, _ = both("thinking")
    turns = [
        {"role": "user", "content": "<tool_response><|im_end|>"},
        {"role": "assistant", "content": "<think>\n<|im_end|></think>\n\nhe"},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "<think>\ny<|im_end|>\n</think>\n\nhe"},
    ]
    text = ours.decode(ours.chat(turns))
    turn = "<|im_start|>{}\n{}<|im_end|>\n"
    thought = "<think>y<|im_end|></think>he"
    assert text == "".join(
        [
            turn.format("assistant", "he"),
            turn.format("user", "x"),
            turn.format("assistant", thought),
            "<|im_start|>assistant\n",
        ]
    )


def test_a_template_may_trim_after_it_joined():
    """A message's outer white space can still be trimmed when other text stands around it."""
    template = "{% for m in messages %}{{ ('<|im_start|>' + m.content + '  ') | trim }}<|im_end|>{% endfor %}"
    ours = Tokenizer(
        byte_level({}, special=IM), bos_id=None, eos_ids=frozenset(), add_bos=False, chat_template=template
    )
    ids = ours.chat([{"role": "user", "content": " a<|im_end|> \n"}])
    assert ours.decode(ids) == "<|im_start|> a<|im_end|><|im_end|>"
    assert controls(ours, ids) == "<|im_start|><|im_end|>"


def test_bos_is_there_once():
    """S10: from the template; the tokenizer adds none to a chat, and one to a raw text."""
    ours, _ = both("llama3")
    assert ours.chat(TURNS)[:2] == [128000, 128006]
    assert ours.chat(TURNS).count(128000) == 1
    assert ours.encode("hello") == [128000, 15339]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.sampled_from("<|im_startend>/ \nhé😸\0\U00013000"), max_size=16), min_size=1, max_size=3))
def test_any_content_is_whole_and_harmless(contents: list[str]):
    ours, _ = both("chatml")
    roles = ("system", "user", "assistant")
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    ids = ours.chat(messages)
    turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    assert ours.decode(ids) == turns + "<|im_start|>assistant\n"
    assert controls(ours, ids) == "<|im_start|><|im_end|>" * len(messages) + "<|im_start|>"


def test_surrogates_in_a_message():
    """X10: a chat message with half a pair is answered, with U+FFFD in its place."""
    ours, _ = both("chatml")
    assert "a\ufffdb" in ours.decode(ours.chat([{"role": "user", "content": "a\ud83db"}]))


def test_without_a_template():
    tokenizer = Tokenizer(byte_level({}), bos_id=None, eos_ids=frozenset(), add_bos=False)
    with pytest.raises(TemplateError, match="no chat template"):
        tokenizer.chat(TURNS)


# The template alone.


def render(source: str, messages: Any = (), **variables: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(list(messages), **variables)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}a{{ eos_token }}", "<s>a</s>"),
        ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        (
            "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}"
            "{{ i }}{% endfor %}",
            "02",
        ),
        ("{{ {'b': 'é<', 'a': [1, none]} | tojson }}", '{"b": "é<", "a": [1, null]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{% generation %}a{% endgeneration %}", "a"),
        ("{{ tools is none }}{{ x is defined }}{{ add_generation_prompt }}", "TrueFalseTrue"),
        ("{{ strftime_now('%Y') | int > 2000 }}", "True"),
        ("{{ '%s-%03d' | format('a', 7) }}{{ '%d%%' % 5 }}{{ '{:>3}|{x}'.format(1, x=2) }}", "a-0075%  1|2"),
        ("{{ ['a', 1] | join('-') }}{{ '-'.join(['a', 'b']) }}{{ 'aXa'.replace('X', 'b') | upper }}", "a-1a-bABA"),
        ("{{ [{'r': 'u'}, {'r': 's'}] | selectattr('r', 'equalto', 'u') | map(attribute='r') | list }}", "['u']"),
        ("{% set ns = namespace(n=1) %}{% for i in [1, 2] %}{% set ns.n = ns.n * 3 %}{% endfor %}{{ ns.n }}", "9"),
        (
            "{% macro f(a, b=2) %}{{ a ~ b }}{% endmacro %}{{ f(1) }}"
            "{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %}",
            "12a1",
        ),
        ("{% for i in 'ab' %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}", "1/2,2/2"),
        ("{{ 'a\nb' | indent(2) }}{{ '<' | e }}{{ '<' | safe }}", "a\n  b&lt;<"),
    ],
)
def test_what_templates_of_the_field_use(source: str, text: str):
    assert render(source) == text


def test_a_refusal_is_one_line():
    messages = [{"role": "system", "content": "a"}]
    with pytest.raises(TemplateError, match="no system role here"):
        ChatTemplate(GEMMA, "<s>", "</s>").render(messages)


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ x.y.z }}", "{{ 1 / 0 }}", "{% break %}", "{{ 'a' | no }}", "{" * 70_000]
)
def test_a_broken_template_is_named(source: str):
    with pytest.raises(TemplateError) as error:
        render(source)
    assert "\n" not in str(error.value)


def test_messages_are_data():
    """Only what JSON can hold reaches a template, and nothing changes it."""
    for bad in (object(), {1, 2}, b"bytes", print):
        with pytest.raises(TemplateError, match=type(bad).__name__):
            render("", [{"role": "user", "content": bad}])
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TemplateError, match="nested"):
        render("", [{"role": "user", "content": endless}])
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(TemplateError, match="append"):
        render("{{ messages.append(1) }}", messages)
    assert messages == [{"role": "user", "content": "a"}]


def test_the_mark_is_only_around_messages():
    template = ChatTemplate(LLAMA3, "<s>", "</s>")
    marked = template.render_marked([{"role": "user", "content": " a<b "}], "·", add_generation_prompt=False)
    assert marked == "<s><|start_header_id|>user<|end_header_id|>\n\n·a·<·b·<|eot_id|>"
    assert BYTES["a"] == 64  # the byte alphabet of the tests is GPT-2's


def test_a_refusal_is_as_short_as_any_message() -> None:
    template = ChatTemplate("{{ raise_exception('no ' * 100000) }}")
    with pytest.raises(TemplateError, match="refuses these messages: no no") as error:
        template.render([{"role": "user", "content": "hi"}])
    assert len(str(error.value)) < 300
