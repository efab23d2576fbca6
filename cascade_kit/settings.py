"""What the process is told from outside: the only reader of environment variables.

`CASCADE_HOME` is the folder that runs are written to, `runs/` below the current folder if it is not
set. `CASCADE_FAST=1` makes the notebooks short: two small steps a stage and few held-out items.
`CASCADE_ALLOW_UNSAFE=1`, or `--allow-unsafe`, lets code that a model wrote run where no sandbox can
be had.
"""

import os
from pathlib import Path


def runs_folder() -> Path:
    return Path(os.environ.get("CASCADE_HOME", "runs"))


def notebook_folder() -> Path:
    """The one run folder of all notebooks; short runs have their own, as their numbers mean little
    and must not be continued by mistake."""
    return runs_folder() / ("notebooks-fast" if fast() else "notebooks")


def fast() -> bool:
    return os.environ.get("CASCADE_FAST", "0") not in ("", "0")


def cache_folder() -> Path:
    """Where converted GGUF models are kept (below the user's cache folder)."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cascade-kit"


def allow_unsafe() -> bool:
    return os.environ.get("CASCADE_ALLOW_UNSAFE", "0") not in ("", "0")


def set_allow_unsafe() -> None:
    """Set it for this process and the workers it starts."""
    os.environ["CASCADE_ALLOW_UNSAFE"] = "1"
