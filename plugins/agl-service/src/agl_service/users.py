"""Who may use a training server: the token of each user, in a file of its folder."""

import json
import re
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pydantic import TypeAdapter

from agl.errors import ConfigError
from agl_runs.files import write_whole
from agl_runs.folders import check_run_id
from agl_sqlite.lockfile import lock_of

USERS = "users.json"
"""In the folder of a server: token -> name of its user."""
_check_users = TypeAdapter(dict[str, str]).validate_json


def read_users(folder: Path) -> dict[str, str]:
    """Token -> name of its user."""
    try:
        return _check_users((folder / USERS).read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        damaged = f"{folder / USERS} is damaged, so no token is known; restore it, or delete it"
        raise ConfigError(f"{damaged} and add the users again: data and jobs stay") from None


def token_of(folder: Path, name: str, new: str | None = None) -> str:
    """The token of a user, who is added if there is none of this name, with the ``new`` token."""
    check_run_id(name)  # it names a folder, too
    if re.fullmatch(r"lock|server.*|.*\.json", name):
        raise ConfigError(f"user {name!r}: files of the server are called so; choose another name")
    with _changing_users(folder) as users:
        known = {user: token for token, user in users.items()}
        token = known.get(name) or new or secrets.token_urlsafe()
        users[token] = name
    return token


def revoke_user(folder: Path, name: str) -> None:
    """Refuse the token of a user; a ``ConfigError`` if there is none of this name."""
    with _changing_users(folder) as users:
        tokens = [token for token, user in users.items() if user == name]
        if not tokens:
            raise ConfigError(f"no user {name!r}; there are: {', '.join(users.values()) or 'none'}")
        for token in tokens:
            del users[token]


@contextmanager
def _changing_users(folder: Path) -> Generator[dict[str, str]]:
    """A block that changes the users, one process at a time."""
    with lock_of(folder):
        yield (users := read_users(folder))
        write_whole(folder / USERS, json.dumps(users))
