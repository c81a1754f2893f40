"""Chat templates that mean harm."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from cutaway.errors import TemplateError
from cutaway.text.chat_template import SIZE_LIMIT, ChatTemplate
from cutaway.text.sandbox import SECONDS

MESSAGES = [{"role": "user", "content": "hi"}]
DOUBLING = "{{% set ns = namespace(x='a') %}}{{% for i in range(60) %}}{{% set ns.x = {} %}}{{% endfor %}}"
BIG = "{% set b = 'a' * 1000000 %}"

INTERNALS = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ namespace.__init__.__globals__ }}",
    "function": "{{ raise_exception.__globals__['__builtins__']['open']('MARKER', 'w') }}",
    "self": "{{ self.__init__.__globals__['__builtins__']['open']('MARKER', 'w') }}",
    "context": "{{ self._TemplateReference__context }}",
    "import": "{{ cycler.__init__.__globals__.os.system('touch MARKER') }}",
    "format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "format_map": "{{ '{x.__class__}'.format_map({'x': messages}) }}",
    "attr": "{{ '' | attr('__class__') }}",
    "map": "{{ messages | map('attr', '__class__') | list }}",
    "include": "{% include 'MARKER' %}",
    "namespace": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__.__base__ }}",
    "mutation": "{{ messages[0].update({'role': 'system'}) }}",
}

GREEDY = {
    "times": "{{ 'a' * 10**9 }}",
    "times list": "{{ [0] * 10**9 }}",
    "power": "{{ 10 ** (10 ** 8) }}",
    "powers": DOUBLING.replace("'a'", "3").format("ns.x * ns.x"),
    "plus": DOUBLING.format("ns.x + ns.x"),
    "tilde": DOUBLING.format("ns.x ~ ns.x"),
    "list": DOUBLING.format("[ns.x, ns.x]"),
    "tuple": DOUBLING.format("(ns.x, ns.x)"),
    "dict": DOUBLING.format("{'a': ns.x, 'b': ns.x}"),
    "call": DOUBLING.format("dict(a=ns.x, b=ns.x)"),
    "replace": DOUBLING.format("ns.x.replace('a', 'aa')"),
    "replace filter": DOUBLING.format("ns.x | replace('a', 'aa')"),
    "join": DOUBLING.format("ns.x.join([ns.x, ns.x])"),
    "join filter": DOUBLING.format("[ns.x, ns.x] | join"),
    "format": DOUBLING.format("'{0}{0}'.format(ns.x)"),
    "percent": DOUBLING.format("'%s%s' % (ns.x, ns.x)"),
    "json": DOUBLING.format("[ns.x, ns.x] | tojson"),
    "block": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = y %}{% endfor %}",
    "width": "{{ '%1000000000s' % 'a' }}",
    "width filter": "{{ '%1000000000s' | format('a') }}",
    "width argument": "{{ '%*s' % (1000000000, 'a') }}",
    "width format": "{{ '{:1000000000}'.format('a') }}",
    "width nested": "{{ '{:{}}'.format('a', 1000000000) }}",
    "width date": "{{ strftime_now('%01000000000d') }}",
    "center": "{{ 'a'.center(10**9) }}",
    "center filter": "{{ 'a' | center(10**9) }}",
    "zeros": "{{ 'a'.zfill(10**9) }}",
    "tabs": "{{ '\t'.expandtabs(10**9) }}",
    "bytes": "{{ (5).to_bytes(10**9) }}",
    "indent": "{{ 'a\nb' | indent(10**9) }}",
    "json indent": "{{ [1, [2]] | tojson(indent=10**9) }}",
    "separator": BIG + "{{ (b[:1000] | list) | join(b) }}",
    "empty replace": BIG + "{{ b | replace('', b) }}",
    "one replace": BIG + "{{ b.replace('a', b) }}",
    "one join": BIG + "{{ b.join(b[:1000] | list) }}",
    "lazy": BIG + "{{ ('0 ' * 1000).split() | map('replace', '0', b) | sort | length }}",
    "output": BIG + "{% for i in range(100000) %}{{ b }}{% endfor %}",
    "macro": BIG + "{% macro f() %}{% for i in range(100000) %}{{ b }}{% endfor %}{% endmacro %}{{ f() | length }}",
    "range": "{% for i in range(10**9) %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}

ENDLESS = {
    "loops": "{% set r = range(100000) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
    "filtered": "{% for i in range(100000) %}{% for j in range(100000) if false %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
    "recursive": "{% for i in range(9) recursive %}{% if loop.depth < 30 %}{{ loop(range(9)) }}{% endif %}{% endfor %}",
}


@pytest.mark.parametrize("source", INTERNALS.values(), ids=INTERNALS)
def test_internals_are_out_of_reach(source: str, tmp_path: Path):
    """S11: a named error, and the file that the template would make is not there."""
    marker = tmp_path / "marker"
    with pytest.raises(TemplateError) as error:
        ChatTemplate(source.replace("MARKER", str(marker))).render(MESSAGES)
    assert not marker.exists()
    assert "\n" not in str(error.value)


def test_internals_are_out_of_reach_of_marked_messages():
    """S11: the other way a chat is rendered is the same sandbox."""
    for source in INTERNALS.values():
        with pytest.raises(TemplateError):
            ChatTemplate(source).render_marked(MESSAGES, "·")
    for name in ("raw", "count.__func__"):
        with pytest.raises(TemplateError, match="out of a template's reach"):
            ChatTemplate(f"{{{{ messages[0].content.{name} }}}}").render_marked(MESSAGES, "·")


@pytest.mark.parametrize("source", GREEDY.values(), ids=GREEDY)
@pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited by Linux's resource module")
def test_greed_is_stopped(source: str):
    """S11: within a bound on memory; 400 MB more than the tests hold already."""
    import resource

    assert ChatTemplate(BIG + "{{ b | length }}").render([]) == "1000000", "what comes before is allowed"

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 400 * 2**20, limits[1]))
    start = time.monotonic()
    try:
        with pytest.raises(TemplateError) as error:
            ChatTemplate(source).render(MESSAGES)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert "MemoryError" not in str(error.value)
    assert time.monotonic() - start < 6


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_time_is_bounded(source: str, monkeypatch: pytest.MonkeyPatch):
    """S11: here after a fifth of a second; the machine may be busy."""
    monkeypatch.setattr("cutaway.text.chat_template.SECONDS", 0.2)
    start = time.monotonic()
    with pytest.raises(TemplateError, match="longer than"):
        ChatTemplate(source).render(MESSAGES)
    assert time.monotonic() - start < 2


def test_the_limit_of_time_is_seconds():
    """S11: as it is shipped."""
    start = time.monotonic()
    with pytest.raises(TemplateError, match="longer than 2 s"):
        ChatTemplate(ENDLESS["loops"]).render(MESSAGES)
    assert SECONDS <= time.monotonic() - start < 3 * SECONDS


def test_the_output_is_bounded_not_cut():
    assert len(ChatTemplate("{{ 'a' * n }}").render([], n=SIZE_LIMIT // 2)) == SIZE_LIMIT // 2
    with pytest.raises(TemplateError, match=str(SIZE_LIMIT)):
        ChatTemplate("{% for i in range(3) %}{{ 'a' * n }}{% endfor %}").render([], n=SIZE_LIMIT // 2)


def test_a_long_message_is_written_with_its_marks():
    messages = [{"role": "user", "content": "ab " * (SIZE_LIMIT // 3)}]
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render_marked(messages, "·").replace("·", "") == template.render(messages)


def test_a_template_is_not_the_next_ones_business():
    """One template's time is its own, and its names stay its own."""
    with pytest.raises(TemplateError):
        ChatTemplate("{% set bos_token = 1 %}{{ 1 / 0 }}").render([])
    assert ChatTemplate("{{ bos_token }}").render([]) == ""
