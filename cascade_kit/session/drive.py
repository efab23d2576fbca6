"""Where a run outlives the machine: on Colab in Google Drive, elsewhere among the other runs."""

import importlib
import sys
from pathlib import Path

from cascade_kit import settings

MOUNT = Path("/content/drive")


def kept_folder(name: str, *, drive: bool = True) -> Path:
    """The run folder of a name; it need not exist yet.

    On Colab, unless `drive` is false, Google Drive is mounted (Colab asks for permission) and the
    folder is `cascade-kit/NAME` in it. ValueError for a name that is a path.
    """
    if name in ("", ".", "..") or Path(name).name != name:
        raise ValueError(f"{name!r} is no name of a folder; leave out slashes")
    if not drive or "google.colab" not in sys.modules:
        return settings.runs_folder() / name
    # Only Colab has this module.
    importlib.import_module("google.colab.drive").mount(str(MOUNT))
    return MOUNT / "MyDrive" / "cascade-kit" / name
