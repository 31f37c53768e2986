"""Where things are kept that could be made again."""

import functools
import os
import pathlib
import stat
import sys
import tempfile


def folder() -> pathlib.Path:
    """The user's cache folder for jaxbed; it may not exist yet.

    A user without a home to write to, as in containers, has one among the temporary files. Raises ValueError where somebody else could
    write there.
    """
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(chosen) / "jaxbed"
    try:
        home = pathlib.Path.home() / ".cache" / "jaxbed"
    except RuntimeError:  # HOME is not set, and the system does not know the user
        return _temporary()
    existing = next(path for path in (home, *home.parents) if os.path.exists(path))
    return home if os.access(existing, os.W_OK | os.X_OK) else _temporary()


@functools.cache  # reported once
def _temporary() -> pathlib.Path:
    path, other = pathlib.Path(tempfile.gettempdir()) / f"jaxbed-{os.getuid()}", "XDG_CACHE_HOME=FOLDER names another folder"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()  # what is read from there is run: programs that were compiled
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ValueError(f"{path} is not a folder that user {os.getuid()} alone can access: delete it. {other}")
    print(f"jaxbed: user {os.getuid()} has no home folder to write to (HOME): caches are kept in {path}. {other}", file=sys.stderr)
    return path
