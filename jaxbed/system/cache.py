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
        own = pathlib.Path.home() / ".cache" / "jaxbed"
    except RuntimeError:  # HOME is not set, and the system does not know the user
        return _temporary()
    there = next(place for place in (own, *own.parents) if os.path.exists(place))
    return own if os.access(there, os.W_OK | os.X_OK) else _temporary()


@functools.cache  # reported once
def _temporary() -> pathlib.Path:
    own, other = pathlib.Path(tempfile.gettempdir()) / f"jaxbed-{os.getuid()}", "XDG_CACHE_HOME=FOLDER names another folder"
    own.mkdir(mode=0o700, exist_ok=True)
    found = own.lstat()  # what is read from there is run: programs that were compiled
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ValueError(f"{own} is no folder of which user {os.getuid()} alone has the rights: delete it. {other}")
    print(f"jaxbed: user {os.getuid()} has no home folder to write to (HOME): caches are kept in {own}. {other}", file=sys.stderr)
    return own
