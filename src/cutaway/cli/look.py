"""cutaway look: the inside of a pass, as answers to questions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.common import model_name, open_model, print_json, read_stdin, reported, tell
from cutaway.cli.options import Debug, Device, Json, Model

if TYPE_CHECKING:
    from cutaway.figures import Result
    from cutaway.language_model import LanguageModel


@reported
def look(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPT]...", help="The text; several sentences for --senses.", show_default="standard input"
        ),
    ] = None,
    model: Model = None,
    attention: Annotated[
        str | None, typer.Option(metavar="L.H|all", help="Where a head looks, in all stages: 3.5; or all heads.")
    ] = None,
    lens: Annotated[bool, typer.Option("--lens", help="What every layer would say, at every position.")] = False,
    contributions: Annotated[
        bool, typer.Option("--contributions", help="What every head and feed-forward adds to the target.")
    ] = False,
    effects: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="Replace heads, attn, ff or resid, one after another, and see the target."),
    ] = None,
    senses: Annotated[
        str | None, typer.Option(metavar="WORD", help="How one word parts in several sentences, each a PROMPT.")
    ] = None,
    neighbours: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Tokens nearest to a value of the last position: blocks.3.resid_post, embed."
        ),
    ] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="MODEL", help="What sets another model apart on this text.")
    ] = None,
    findings: Annotated[
        bool, typer.Option("--findings", help="Dead heads, collapsed attention, spikes of a run's loss, repetition.")
    ] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Check what every look relies on.")] = False,
    edit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EDIT", help="'zero blocks.3.attn.z[head 5]', 'scale blocks.*.ff.out 0.5', mean, knockout."
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="The token followed.", show_default="the likeliest")
    ] = None,
    versus: Annotated[str | None, typer.Option(metavar="TOKEN", help="Measure the target against this token.")] = None,
    source: Annotated[
        str | None, typer.Option(metavar="PROMPT", help="Patch from this text, as long, in --effects.")
    ] = None,
    how: Annotated[
        str | None, typer.Option(metavar="HOW", help="zero, mean or patch, in --effects.", show_default="zero; patch")
    ] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write all answers into one file.")] = None,
    dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="Exact in float32; float32, bfloat16 or float16.")
    ] = "float32",
    device: Device = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Look inside a pass: what comes next, how the layers got there, and which parts did it.

    Without a question, one screen about the prompt. Each question adds an answer; --json is a list of them.
    """
    texts = _texts(prompts)
    asked = Asked(
        attention=attention,
        lens=lens,
        contributions=contributions,
        effects=effects,
        senses=senses,
        neighbours=neighbours,
        compare=compare,
        findings=findings,
        exact=exact,
        edit=tuple(edit or ()),
        target=target,
        versus=versus,
        source=source,
        how=how,
    )
    asked.check(texts)
    name = model_name(model)
    loaded = open_model(name, dtype, device)
    from cutaway.show.terminal import console, waiting

    with waiting("looking") as told:
        results = list(asked.answers(loaded, name, texts, told))
    if html is not None:
        from cutaway.show.html import write

        write(html, results)
        tell("written", html)
    if json:
        print_json([result.to_dict() for result in results])
    elif html is None:
        screen = console()
        for i, result in enumerate(results):
            screen.print("\n" * (i > 0), end="")
            screen.print(result)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The questions of one call, and what they need."""

    attention: str | None = None
    lens: bool = False
    contributions: bool = False
    effects: str | None = None
    senses: str | None = None
    neighbours: str | None = None
    compare: str | None = None
    findings: bool = False
    exact: bool = False
    edit: tuple[str, ...] = ()
    target: str | None = None
    versus: str | None = None
    source: str | None = None
    how: str | None = None

    @property
    def of_one_text(self) -> bool:
        """Whether anything but the senses is asked; to ask nothing is to ask for the one screen."""
        return self.senses is None or replace(self, senses=None) != Asked()

    def check(self, texts: Sequence[str]) -> None:
        """Refuse options that would have no use."""
        if self.of_one_text and len(texts) > 1:
            raise typer.BadParameter(f"{len(texts)} prompts: give one (in quotes), or several sentences for --senses")
        if self.senses is not None and len(texts) < 2:
            raise typer.BadParameter("--senses needs two sentences or more, each in quotes")
        if self.effects is None and (self.source is not None or self.how is not None):
            raise typer.BadParameter("--source and --how belong to --effects")
        needs_target = self.lens or self.contributions or self.effects is not None
        if not needs_target and (self.target is not None or self.versus is not None):
            raise typer.BadParameter("--target and --versus belong to --lens, --contributions and --effects")

    def answers(
        self, model: LanguageModel, name: str, texts: Sequence[str], told: Callable[[str], None]
    ) -> Iterator[Result]:
        """Each question's answer. A model that is a run's folder brings its log to the findings."""
        from cutaway import inside

        if self.senses is not None:
            told("senses: pulling the sentences apart")
            yield inside.senses(model, self.senses, texts)
        if not self.of_one_text:
            return
        text = texts[0]
        edits = [inside.edit(words) for words in self.edit]
        if edits:
            yield inside.edited(model, text, edits)
        if self.attention == "all":
            yield inside.attention(model, text)
        elif self.attention is not None:
            yield inside.attention(model, text, head=self.attention)
        if self.lens:
            told("lens: reading every layer")
            yield inside.lens(model, text, target=self.target, edits=edits)
        if self.contributions:
            yield inside.contributions(model, text, target=self.target, versus=self.versus)
        if self.effects is not None:
            yield inside.effects(
                model,
                text,
                what=self.effects,  # type: ignore[arg-type]  # checked there, with the nearest name
                source=self.source,
                how=self.how,  # type: ignore[arg-type]
                target=self.target,
                versus=self.versus,
                progress=lambda done, total: told(f"effects: {done} of {total} passes"),
            )
        if self.neighbours is not None:
            yield inside.neighbours(model, text, name=self.neighbours)
        if self.compare is not None:
            other = open_model(self.compare, str(model.dtype).removeprefix("torch."), str(model.device))
            yield inside.compare(model, other, text, names=(name, self.compare))
        if self.findings:
            told("findings: taking every head away")
            yield inside.findings(model, text, run=name if Path(name, "log.jsonl").exists() else None)
        if self.exact:
            yield inside.exact(model, text)
        if self == Asked():
            yield inside.look(model, text)


def _texts(prompts: Sequence[str] | None) -> list[str]:
    """The prompts, read from standard input where there are none."""
    if not prompts and sys.stdin.isatty():
        raise typer.BadParameter("give a text to look into, or `-` to type it on standard input")
    return [read_stdin() if text == "-" else text for text in prompts or ["-"]]
