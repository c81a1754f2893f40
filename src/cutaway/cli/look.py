"""cutaway look: the inside of a pass, as answers to questions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.common import as_given, model_name, open_model, print_json, read_stdin, reported, tell
from cutaway.cli.options import Debug, Device, Json, Model

if TYPE_CHECKING:
    from cutaway.figures import Result
    from cutaway.language_model import LanguageModel


@reported
def look(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT",
            help="The text; several sentences for --senses.",
            show_default="standard input, in a pipe or with -",
        ),
    ] = None,
    model: Model = None,
    attention: Annotated[
        str | None, typer.Option(metavar="L.H|all", help="Where head H of layer L looks, stage by stage; or all heads.")
    ] = None,
    lens: Annotated[bool, typer.Option("--lens", help="What every layer would say, at every position.")] = False,
    contributions: Annotated[
        bool, typer.Option("--contributions", help="What every head and feed-forward adds to the target's logit.")
    ] = False,
    effects: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT", help="What replacing each part does to the target: of heads, attn, ff or resid, one by one."
        ),
    ] = None,
    senses: Annotated[
        str | None, typer.Option(metavar="WORD", help="How a word's vectors part in several sentences, each a PROMPT.")
    ] = None,
    neighbours: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Tokens nearest to a value, such as blocks.3.resid_post, or embed."),
    ] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="MODEL", help="What sets another model or checkpoint apart on this text.")
    ] = None,
    findings: Annotated[
        bool, typer.Option("--findings", help="Dead heads, collapsed attention, jumps of a run's loss, repetition.")
    ] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Check on this text what every look relies on.")] = False,
    edit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EDIT",
            help="What comes next when the pass is changed: 'zero blocks.3.attn.z[head 5]', 'scale blocks.*.ff.out "
            "0.5', or mean, resample, knockout and a name. Several act together, and in --lens.",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="The token followed, such as ' Mary'.", show_default="likeliest")
    ] = None,
    versus: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Take the target's logit over that of this token.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="PROMPT", help="A text of as many tokens, from which --effects patches.")
    ] = None,
    how: Annotated[
        str | None,
        typer.Option(
            metavar="HOW", help="How --effects replaces: zero, mean or patch.", show_default="zero; patch with --source"
        ),
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Take --effects from one pass and its gradient: fast, near for small effects."),
    ] = False,
    run: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="The run whose log --findings reads.", show_default="the model's own"),
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Instead of a PROMPT: random tokens, twice, on which induction heads show.")
    ] = False,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write the answers into one HTML file.")] = None,
    dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="float32, in which looks are exact, bfloat16 or float16.")
    ] = "float32",
    device: Device = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Look inside a pass: what comes next, and which parts did it.

    Without a question, one screen about the prompt. Every question adds its answer; --json prints them as a list.
    """
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
        estimate=estimate,
        run=run,
    )
    asked.check(1 if probe else len(prompts or ["-"]))
    if probe and prompts:
        raise typer.BadParameter("--probe is a text itself: leave out the PROMPT")
    if html is not None and not Path(html).parent.is_dir():  # told before the work, not after it
        raise typer.BadParameter(f"--html {html}: there is no folder {Path(html).parent}")
    if html is not None and Path(html).is_dir():
        raise typer.BadParameter(f"--html {html}: a folder: name a file, such as {Path(html) / 'look.html'}")
    texts: list[str] = [] if probe else _texts(prompts)
    name = model_name(model)
    loaded = open_model(name, dtype, device)
    from cutaway.inside import probe as probed
    from cutaway.show.terminal import console, waiting

    with waiting("looking") as told:
        results = list(asked.answers(loaded, name, [probed(loaded)] if probe else texts, told))
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
    estimate: bool = False
    run: str | None = None

    @property
    def of_one_text(self) -> bool:
        """Whether anything but the senses is asked; to ask nothing is to ask for the one screen."""
        return self.senses is None or replace(self, senses=None) != Asked()

    def check(self, n_texts: int) -> None:
        """Refuse what would have no use, before anything is loaded."""
        if self.of_one_text and n_texts > 1:
            raise typer.BadParameter(f"{n_texts} prompts: put one text in quotes; only --senses takes several")
        if self.senses is not None and n_texts < 2:
            raise typer.BadParameter("--senses needs two sentences or more, each in quotes")
        followed = {"--lens": self.lens, "--contributions": self.contributions, "--effects": self.effects is not None}
        for option, given, able in (
            ("--target", self.target, followed),
            ("--versus", self.versus, {name: used for name, used in followed.items() if name != "--lens"}),
            ("--source", self.source, {"--effects": followed["--effects"]}),
            ("--how", self.how, {"--effects": followed["--effects"]}),
            ("--estimate", self.estimate or None, {"--effects": followed["--effects"]}),
            ("--run", self.run, {"--findings": self.findings}),
        ):
            if given is not None and not any(able.values()):
                raise typer.BadParameter(f"{option} belongs to {' or '.join(able)}: add it, or leave {option} out")
        if self.edit and replace(self, edit=(), lens=False, target=None) != Asked():
            raise typer.BadParameter("--edit changes what comes next and --lens, nothing else: ask the rest without it")

    def answers(
        self, model: LanguageModel, name: str, texts: Sequence[str | list[int]], told: Callable[[str], None]
    ) -> Iterator[Result]:
        """Each question's answer, in the order of the help."""
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
        if self.attention is not None:
            head = None if self.attention == "all" else self.attention
            yield inside.attention(model, text) if head is None else inside.attention(model, text, head=head)
        if self.lens:
            told("lens: reading every layer")
            yield inside.lens(model, text, target=self.target, edits=edits)
        if self.contributions:
            yield inside.contributions(model, text, target=self.target, versus=self.versus)
        if self.effects is not None:
            yield inside.effects(
                model,
                text,
                what=self.effects,  # type: ignore[arg-type]  # checked there, with what there is
                source=self.source,
                how=self.how,  # type: ignore[arg-type]
                target=self.target,
                versus=self.versus,
                estimate=self.estimate,
                progress=lambda done, total: told(f"effects: {done} of {total} passes"),
            )
        if self.neighbours is not None:
            yield inside.neighbours(model, text, name=self.neighbours)
        if self.compare is not None:
            other = open_model(self.compare, str(model.dtype).removeprefix("torch."), str(model.device))
            told("compare: reading the text with both")
            yield inside.compare(model, other, text, names=(name, self.compare))
        if self.findings:
            told("findings: taking heads away, one by one")
            yield inside.findings(model, text, run=_run_of(name) if self.run is None else self.run)
        if self.exact:
            yield inside.exact(model, text)
        if self == Asked():
            yield inside.look(model, text)


def _run_of(name: str) -> str | None:
    """The run that a model is of: its folder has the log, or a checkpoint's folder is in one that has it."""
    return name if any((folder / "log.jsonl").is_file() for folder in (Path(name), Path(name).parent)) else None


def _texts(prompts: Sequence[str] | None) -> list[str]:
    """The prompts, read from standard input where there are none."""
    if not prompts and sys.stdin.isatty():
        raise typer.BadParameter("give a text to look into, or `-` to type it on standard input")
    return [read_stdin() if text == "-" else as_given(text) for text in prompts or ["-"]]
