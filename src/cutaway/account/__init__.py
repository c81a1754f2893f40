"""What a transformer holds, does and takes, worked out from its config alone: parameters, FLOPs, memory, time, scale.

Formulas import no torch; only what measures (`machine`, `measure`) does. A multiply-add is 2 FLOPs, an embedding's
lookup is none, a head counts whether it is tied or not, and the causal half is not cut unless a figure says so.
"""
