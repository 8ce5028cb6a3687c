"""The token of a page that was started without one: only this user may open the page.

Owns the file that keeps it, one for each port: a page that is started again has the same token, so browsers stay logged
in. Other users can reach the port, but not read the file.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.private import check_ours, new_file, own_folder


def token_file(port: int) -> Path:
    """Return the file with the token of this user's page on a port.

    Raises:
        StoreError: another user may have created its folder, or it cannot be created.
    """
    return own_folder("pages") / f"{port}.token"


def own_token(port: int) -> str:
    """Return the token of this user's page on a port; make one if there is none.

    Raises:
        StoreError: it cannot be kept.
    """
    file = token_file(port)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        check_ours(file)
        if (token := file.read_text(encoding="ascii").strip()).isalnum():
            return token
    token = secrets.token_hex(32)
    try:
        file.unlink(missing_ok=True)
        with open(new_file(file), "w", encoding="ascii") as out:
            out.write(f"{token}\n")
    except OSError as e:
        raise StoreError(
            f"the page's token cannot be kept in '{file}': {e.strerror}",
            "choose another temporary folder with the environment variable TMPDIR",
        ) from e
    return token
