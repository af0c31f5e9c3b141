"""Part `bounds`: what must stay small, as a table of deeds, each with its figures and their bounds.

`benchmarks.parts` lists them; each is measured in a process of its own, and may be named alone.
"""
