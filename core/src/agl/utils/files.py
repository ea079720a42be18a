"""Files that only their owner can read."""

import os
import stat


def close_to_others(path: str) -> int | None:
    """Take from other users what they may do with a file of this user, if it is one.

    Returns:
        The mode that it had; None where nothing was to be done, or could be.
    """
    if not hasattr(os, "geteuid"):
        return None
    try:
        # Another user may have left a link there.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid != os.geteuid() or not mode & 0o077:
            return None
        os.fchmod(file, mode & 0o700)
        return mode
    except OSError:  # a file system that keeps no modes
        return None
    finally:
        os.close(file)
