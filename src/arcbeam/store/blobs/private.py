"""Files and folders that only their owner can read, and those with whom the folder around them is shared on purpose.

Owns the rule for modes, and the check of who owns what is about to be read. Knows nothing of what files hold.

The rule: a new folder has mode 0700, a new file 0600, whatever the umask. If the folder around it has the set-group-ID
bit, or a default ACL, its administrator shares it with a group: what is new there has the group's rights of that
folder, too. Nothing that is made here can be read by all others.
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
    """The rights (bits of a mode) that the group has in what is made in a folder: none if it is not shared on purpose.

    Raises:
        OSError: there is no such folder.
    """
    mode = os.stat(folder).st_mode
    if mode & stat.S_ISGID:
        return mode & _GROUP
    with contextlib.suppress(OSError, AttributeError):  # no ACL; or a system without
        os.getxattr(folder, _DEFAULT_ACL)
        return _GROUP  # the ACL says how much of it
    return 0


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it that are missing; nothing happens if it exists.

    Raises:
        OSError: it cannot be made.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    make_one_folder(path)


def make_one_folder(path: Path) -> None:
    """Makes a folder in one that exists; nothing happens if it exists, too.

    Raises:
        OSError: it cannot be made.
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
    """Make a file and open it for reading and writing; return the descriptor.

    Raises:
        OSError: it cannot be made; FileExistsError if it exists.
    """
    rights = group_rights(path.parent)
    # SUBTLE: for reading, too: network mounts give locks of both kinds only so.
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        if rights:
            os.fchmod(file, 0o600 | (rights & 0o060))
    except BaseException:
        os.close(file)
        raise
    return file


def open_new(path: Path, buffering: int = -1) -> BinaryIO:
    """Make a file and open it for reading and writing, as a stream.

    Raises:
        OSError: it cannot be made; FileExistsError if it exists.
    """
    return open(path, "w+b", buffering, opener=lambda _, flags: new_file(path))


def open_lock(path: Path) -> BinaryIO:
    """Open a file that only serves to be locked; it is made if it is missing.

    Raises:
        OSError: it cannot be opened.
    """
    with contextlib.suppress(FileExistsError):
        os.close(new_file(path))
    return open(path, "r+b", buffering=0)


def make_private(path: Path) -> None:
    """Takes the rights of all others, and of the group if the folder around it is not shared, from what is ours.

    For files that libraries make (LMDB, SQLite). Nothing happens to what is private, or gone.
    """
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.lstat().st_mode)
        wanted = mode & ~stat.S_IRWXO & ~(_GROUP & ~group_rights(path.parent))
        if wanted != mode:
            os.chmod(path, wanted)


def make_as_new(path: Path, folder: Path) -> None:
    """Gives a file of ours, which is to go to `folder`, the mode of a new file there.

    Raises:
        OSError: it cannot be given.
    """
    wanted = 0o600 | (group_rights(folder) & 0o060)
    if stat.S_IMODE(path.stat().st_mode) != wanted:
        os.chmod(path, wanted)


class NotOursError(PermissionError):
    """A file or folder may be another user's work. The text says why."""


def make_own_folder(path: Path) -> None:
    """Makes a folder that this user alone uses; one that exists is checked, and the rights of others are taken away.

    Raises:
        NotOursError: another user may have put it there.
        OSError: it cannot be made.
    """
    make_folder(path)
    check_ours(path)
    make_private(path)


def check_ours(path: Path) -> None:
    """Refuses a file or folder that another user may have put there, before anything of it is believed.

    It is ours if it is no symbolic link, and its owner is this user, or root; or, in a folder that is shared on
    purpose, if its group is one of this user's. A file system that gives all files an owner of its own (some network
    mounts) is asked with a probe.

    Raises:
        FileNotFoundError: there is nothing.
        NotOursError: it is not ours, or a folder where all users can replace files.
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
    """Whether what this process makes there has that owner, too: then the file system does not tell users apart."""
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
    """What is this user's below a folder of everybody's; the system's temporary one if none is named."""
    return Path(root or tempfile.gettempdir()) / f"arcbeam-{os.getuid()}"


def own_folder(name: str) -> Path:
    """A folder of this user's in the system's temporary one, made if need be, that no other user can read.

    Raises:
        StoreError: another user may have put it there, or it cannot be made.
    """
    folder = user_folder() / name
    try:
        make_own_folder(folder.parent)
        make_own_folder(folder)
    except OSError as e:
        raise StoreError(
            f"temporary files cannot be kept in '{folder}': '{e.filename}': {e.strerror}",
            "remove it, or name another temporary folder in the environment, as TMPDIR; files of a job may also go to "
            "--arcbeam_temp",
        ) from e
    return folder
