"""Looking inside a pass: its named values, kept or edited while it runs."""

from cutaway.inside.edits import Add, Edit, KnockOut, Mean, Patch, Replace, Resample, Scale, Zero
from cutaway.inside.exactness import Exactness, exact
from cutaway.inside.names import names
from cutaway.inside.trace import Trace

__all__ = [
    "Add",
    "Edit",
    "Exactness",
    "KnockOut",
    "Mean",
    "Patch",
    "Replace",
    "Resample",
    "Scale",
    "Trace",
    "Zero",
    "exact",
    "names",
]
