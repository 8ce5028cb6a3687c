"""Writing generated pages, or comparing them with the present files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_or_check(documents: Mapping[Path, str], *, check: bool) -> int:
    """Write the documents, or with `check` only compare them. Return an exit code: 1 if one is out of date."""
    code = 0
    for path, document in documents.items():
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(document, encoding="utf-8")
            print(f"{name}: written")
        elif path.exists() and path.read_text(encoding="utf-8") == document:
            print(f"{name}: up to date")
        else:
            print(f"{name} is out of date: run `make docs` and commit it", file=sys.stderr)
            code = 1
    return code
