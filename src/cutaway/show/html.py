"""How figures look in a browser: one file that needs no network, or a frame in a notebook. Nothing is computed here.

The drawing is done by `web/figures.js` from the numbers that are sent with it; all words reach the page as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from cutaway.checkpoint.files import write_atomically
from cutaway.figures import Bars, Figure, HeatMap, HeatMaps, Lines, Prose, Result, Table, plain
from cutaway.show.packed import extent, kept, packed, pooled

DIGITS = 6  # significant, of numbers that are not in a heat map

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>The figures of this page are drawn by the script in it: allow scripts to see them.</noscript>
<div id="page"></div>
<script type="application/json" id="data">{data}</script>
<script type="module" async>{script}</script>
{maps}
</body>
</html>
"""
START = '\npage(JSON.parse(document.getElementById("data").textContent), document.getElementById("page"));\n'


def write(path: str | Path, results: Sequence[Result]) -> None:
    """One file that shows the results in any browser.

    Raises:
        OSError: it cannot be written; a file of before is still there.
    """
    write_atomically(Path(path), document(results, _title(results)).encode("utf-8", "replace"))


def fragment(results: Sequence[Result]) -> str:
    """For a notebook: a frame of its own, so that no style and no name of it meets those of another."""
    title = _title(results)
    height = min(900, 110 + sum(_height(figure) for result in results for figure in result.figures()))
    return (
        f'<iframe sandbox="allow-scripts" title="{escape(title)}" srcdoc="{escape(document(results, title))}" '
        f'style="width: 100%; height: {height}px; border: 0; resize: vertical"></iframe>'
    )


def document(results: Sequence[Result], title: str) -> str:
    """The whole page; numbers of heat maps that are opened one at a time stand at its end, past what is seen first."""
    from cutaway import __version__

    shown: list[dict[str, Any]] = []
    maps: list[str] = []
    for result in results:
        figures = []
        for figure in result.figures():
            sent = parts(figure)
            if isinstance(figure, HeatMaps):
                sent["id"] = f"maps-{len(maps)}"
                maps += [_data(f"{sent['id']}-{i}", one) for i, one in enumerate(_each(figure))]
            figures.append(sent)
        shown.append({"heading": result.heading, "figures": figures})
    web = files("cutaway.show") / "web"
    style = (web / "figures.css").read_text(encoding="utf-8")
    script = (web / "figures.js").read_text(encoding="utf-8") + START
    policy = f"default-src 'none'; img-src data:; script-src {_hash(script)}; style-src {_hash(style)}; "
    return PAGE.format(
        policy=policy + "base-uri 'none'; form-action 'none'",
        title=escape(title),
        style=style,
        script=script,
        data=_json({"title": title, "version": __version__, "results": shown}),
        maps="\n".join(maps),
    )


def parts(figure: Figure) -> dict[str, Any]:
    """What the browser gets of a figure. Of many heat maps, the small pictures; `map_parts` has the numbers of one."""
    if isinstance(figure, HeatMap):
        return _plain(figure) | {"values": packed(figure.values, figure.scale, kept(figure.values.size))}
    if isinstance(figure, HeatMaps):
        small = np.stack([pooled(values, figure.scale) for values in figure.values])
        return _plain(figure) | {
            "shape": list(figure.values.shape[1:]),
            "extent": plain(extent(figure.values), DIGITS),
            "small": packed(small, figure.scale, 4),
        }
    return figure.to_dict(digits=DIGITS)


def map_parts(figure: HeatMaps, name: str) -> dict[str, Any]:
    """The numbers of one map, as the browser gets them when it is opened."""
    return packed(figure.values[list(figure.names).index(name)], figure.scale, kept(figure.values.size))


def _title(results: Sequence[Result]) -> str:
    return results[0].heading if len(results) == 1 else f"Cutaway: {len(results)} answers"


def _each(figure: HeatMaps) -> Iterator[dict[str, Any]]:
    return (packed(values, figure.scale, kept(figure.values.size)) for values in figure.values)


def _plain(figure: Figure) -> dict[str, Any]:
    """All but the numbers."""
    fields = {name: plain(value, DIGITS) for name, value in vars(figure).items() if name != "values"}
    return {"kind": figure.kind} | fields


def _data(name: str, value: object) -> str:
    return f'<script type="application/json" id="{name}">{_json(value)}</script>'


def _json(value: object) -> str:
    """JSON in ASCII that cannot end the element it stands in, nor begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=_number)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _number(value: Any) -> object:
    """A number of numpy's as one of Python's."""
    return plain(value.item(), DIGITS) if isinstance(value, np.generic) else str(value)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _height(figure: Figure) -> int:
    """About how high a figure is [px]."""
    match figure:
        case HeatMaps() | Lines():
            return 560
        case HeatMap():
            return 220 + min(560, 30 * len(figure.rows))
        case Bars():
            return 90 + 30 * len(figure.labels)
        case Table():
            return 110 + 34 * min(100, len(figure.rows))
        case Prose():
            return 60 + 30 * len(figure.lines)
        case _:
            return 200
