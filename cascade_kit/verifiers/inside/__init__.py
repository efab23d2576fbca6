"""The half of the sandbox that runs inside it: standard library only, started by script.

Nothing here may import the rest of cascade_kit: the sandbox sees this folder, Python and the
system's read-only files, and nothing else. `sandbox.py` and `pool.py` are the halves outside.
"""
