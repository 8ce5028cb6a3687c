"""The versions of a process, and whether those of two processes are compatible. Imports no Spark: both sides use it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import metadata

from arcbeam.errors import EnvironmentMismatchError
from arcbeam.sizes import remembered


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions that must agree between driver and workers: Python's minor, Beam's and arcbeam's."""

    python: str
    beam: str
    arcbeam: str

    @staticmethod
    @remembered()
    def here() -> Versions:
        """Return those of this process."""
        return Versions(f"{sys.version_info[0]}.{sys.version_info[1]}", _version("apache-beam"), _version("arcbeam"))

    def check(self) -> None:
        """Raise EnvironmentMismatchError if this process has other versions."""
        here = Versions.here()
        if here != self:
            raise EnvironmentMismatchError(
                f"the driver runs Python {self.python}, Beam {self.beam}, arcbeam {self.arcbeam}; "
                f"the worker runs Python {here.python}, Beam {here.beam}, arcbeam {here.arcbeam}",
                "use the same versions on both sides; PYSPARK_PYTHON names the workers' interpreter",
            )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"
