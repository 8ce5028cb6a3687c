"""What the SDK asks of every runner (its tests marked `it_validatesrunner`), on arcbeam, in every variant."""

from __future__ import annotations

import pytest

from tests.conformance import suites

for _variant in suites.VARIANTS:
    for _name, _case in suites.bound(_variant).items():
        _marks = [pytest.mark.usefixtures("spark"), *([pytest.mark.long] if _variant.long else [])]
        _case.__module__, _case.pytestmark = __name__, _marks  # type: ignore[attr-defined]
        globals()[_name] = _case
del _case
