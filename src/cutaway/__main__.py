"""`python -m cutaway`: the command line."""

from __future__ import annotations

import os
import sys

from cutaway.cli import main

if __name__ == "__main__":
    code = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # One of torchrun's processes. Its work is done and saved, but gloo may have a thread left, for which C++ would
        # end the process with an abort while it takes itself apart; and torchrun then ends all others.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
