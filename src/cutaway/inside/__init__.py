"""Looking inside a pass: its named values, kept or edited while it runs, and the questions they answer.

Each question is one call and gives one result, which a terminal, a notebook and a browser can show.
"""

from cutaway.inside.altered import altered
from cutaway.inside.attention import Attention, HeadAttention, attention
from cutaway.inside.compare import Comparison, compare
from cutaway.inside.contributions import Contributions, contributions
from cutaway.inside.edited import Edited, edit, edited
from cutaway.inside.edits import Add, Edit, KnockOut, Mean, Patch, Replace, Resample, Scale, Zero
from cutaway.inside.effects import Effects, effects
from cutaway.inside.exactness import Exactness, exact
from cutaway.inside.findings import Findings, findings
from cutaway.inside.heads import probe
from cutaway.inside.lens import Lens, lens
from cutaway.inside.look import Look, look
from cutaway.inside.names import names
from cutaway.inside.neighbours import Neighbours, neighbours
from cutaway.inside.senses import Senses, senses
from cutaway.inside.trace import Trace

__all__ = [
    "Add",
    "Attention",
    "Comparison",
    "Contributions",
    "Edit",
    "Edited",
    "Effects",
    "Exactness",
    "Findings",
    "HeadAttention",
    "KnockOut",
    "Lens",
    "Look",
    "Mean",
    "Neighbours",
    "Patch",
    "Replace",
    "Resample",
    "Scale",
    "Senses",
    "Trace",
    "Zero",
    "altered",
    "attention",
    "compare",
    "contributions",
    "edit",
    "edited",
    "effects",
    "exact",
    "findings",
    "lens",
    "look",
    "names",
    "neighbours",
    "probe",
    "senses",
]
