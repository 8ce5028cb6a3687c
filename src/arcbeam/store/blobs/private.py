"""Private files and folders: only their owner can read them, and the group with which a folder is shared on purpose.

Owns the rule for modes, and the check of a file's owner before it is read. Must not know the content of files.

The rule: a new folder has mode 0700, a new file 0600, independent of the umask. If the parent folder has the
set-group-ID bit, or a default ACL, its administrator shares it with a group. Then new files and folders in it have the
group's rights of the parent, too. No new file or folder is readable for all users.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import uuid
from pathlib import Path
from typing import BinaryIO

from arcbeam.store.blobs.errors import StoreError

_GROUP = stat.S_IRWXG
_DEFAULT_ACL = "system.posix_acl_default"


def group_rights(folder: Path) -> int:
    """Return the rights (bits of a mode) of the group in new entries of a folder: none if it is not shared on purpose.

    Raises:
        OSError: there is no such folder.
    """
    mode = os.stat(folder).st_mode
    if mode & stat.S_ISGID:
        return mode & _GROUP
    with contextlib.suppress(OSError, AttributeError):  # no ACL, or a system without ACLs
        os.getxattr(folder, _DEFAULT_ACL)
        return _GROUP  # the ACL limits it
    return 0


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, if it does not exist.

    Raises:
        OSError: it cannot be created.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    make_one_folder(path)


def make_one_folder(path: Path) -> None:
    """Create a folder in an existing one, if it does not exist.

    Raises:
        OSError: it cannot be created.
    """
    rights = group_rights(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    if rights:
        os.chmod(path, stat.S_IMODE(path.stat().st_mode) | rights)


def new_file(path: Path) -> int:
    """Create a file and open it for reading and writing; return the descriptor.

    Raises:
        OSError: it cannot be created; FileExistsError if it exists.
    """
    rights = group_rights(path.parent)
    # SUBTLE: for reading, too: network mounts require this for locks of both kinds.
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        if rights:
            os.fchmod(file, 0o600 | (rights & 0o060))
    except BaseException:
        os.close(file)
        raise
    return file


def open_new(path: Path, buffering: int = -1) -> BinaryIO:
    """Create a file and open it for reading and writing, as a stream.

    Raises:
        OSError: it cannot be created; FileExistsError if it exists.
    """
    return open(path, "w+b", buffering, opener=lambda _, flags: new_file(path))


def open_lock(path: Path) -> BinaryIO:
    """Open a file that only serves as a lock; create it if it is missing.

    Raises:
        OSError: it cannot be opened.
    """
    with contextlib.suppress(FileExistsError):
        os.close(new_file(path))
    return open(path, "r+b", buffering=0)


def make_private(path: Path) -> None:
    """Remove the rights of all others from a file or folder, and those of the group if its parent is not shared.

    For files that libraries create (LMDB, SQLite). Private and missing files stay as they are.
    """
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.lstat().st_mode)
        wanted = mode & ~stat.S_IRWXO & ~(_GROUP & ~group_rights(path.parent))
        if wanted != mode:
            os.chmod(path, wanted)


def make_as_new(path: Path, folder: Path) -> None:
    """Give a file that moves to `folder` the mode of a new file there.

    Raises:
        OSError: the mode cannot be set.
    """
    wanted = 0o600 | (group_rights(folder) & 0o060)
    if stat.S_IMODE(path.stat().st_mode) != wanted:
        os.chmod(path, wanted)


class NotOursError(PermissionError):
    """A file or folder may be another user's. The text says why."""


def make_own_folder(path: Path) -> None:
    """Create a folder for this user alone. One that exists is checked, and loses the rights of others.

    Raises:
        NotOursError: another user may have created it.
        OSError: it cannot be created.
    """
    make_folder(path)
    check_ours(path)
    make_private(path)


def check_ours(path: Path) -> None:
    """Refuse a file or folder that another user may have created, before its content is used.

    It is accepted if it is not a symbolic link, and its owner is this user or root. In a folder that is shared on
    purpose it is also accepted if its group is one of this user's. Some network mounts give all files the same owner; a
    probe file detects that.

    Raises:
        FileNotFoundError: it does not exist.
        NotOursError: it is another user's, or a folder where all users can replace files.
    """
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise NotOursError(errno.EPERM, "it is a symbolic link, which another user may have put there", str(path))
    if not (found.st_uid in (os.geteuid(), 0) or _shared_with_us(path, found) or _owns_what_we_make(path, found)):
        raise NotOursError(errno.EPERM, f"it belongs to another user ({_name(found.st_uid)})", str(path))
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise NotOursError(errno.EPERM, "all users can write to it", str(path))


def _shared_with_us(path: Path, found: os.stat_result) -> bool:
    around = path.parent.stat()
    if not around.st_mode & stat.S_ISGID or around.st_mode & stat.S_IWOTH or found.st_mode & stat.S_IWOTH:
        return False
    return found.st_gid == around.st_gid and found.st_gid in (os.getegid(), *os.getgroups())


def _owns_what_we_make(path: Path, found: os.stat_result) -> bool:
    """Return whether new files of this process have that owner, too: the file system does not distinguish users."""
    probe = (path if stat.S_ISDIR(found.st_mode) else path.parent) / f".owner-{uuid.uuid4().hex}"
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError:
        return False
    try:
        return probe.lstat().st_uid == found.st_uid
    finally:
        probe.unlink(missing_ok=True)


def _name(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name}, uid {uid}"
    except KeyError:
        return f"uid {uid}"


def user_folder(root: str = "") -> Path:
    """Return this user's folder in a shared one; by default in the system's temporary folder."""
    return Path(root or tempfile.gettempdir()) / f"arcbeam-{os.getuid()}"


def own_folder(name: str) -> Path:
    """Return a folder of this user in the system's temporary folder, unreadable for others; create it if needed.

    Raises:
        StoreError: another user may have created it, or it cannot be created.
    """
    folder = user_folder() / name
    try:
        make_own_folder(folder.parent)
        make_own_folder(folder)
    except OSError as e:
        around = f", because of '{e.filename}'" if str(e.filename) != str(folder) else ""
        raise StoreError(
            f"temporary files cannot be kept in '{folder}'{around}: {e.strerror}",
            "remove it, or choose another temporary folder with the environment variable TMPDIR; for files of a job "
            "you can also set --arcbeam_temp",
        ) from e
    return folder
