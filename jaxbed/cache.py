"""Where things are kept that could be made again."""

import os
import pathlib


def folder() -> pathlib.Path:
    """The user's cache folder for jaxbed; it may not exist yet."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "jaxbed"
