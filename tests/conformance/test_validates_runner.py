"""What the SDK asks of every runner (its tests marked `it_validatesrunner`), on arcbeam, in every variant.

`make test` has them as the runner runs by default, and a few without fusion.
"""

from __future__ import annotations

import pytest

from tests.conformance import suites

_FEW = ("CombineFnLifecycleNoFusion", "DoFnLifecycleNoFusion", "TranslationsNoFusion")

for _variant in suites.VARIANTS:
    for _name, _case in suites.bound(_variant).items():
        _long = _variant is not suites.DEFAULT and _name not in _FEW
        _marks = [pytest.mark.usefixtures("spark"), *([pytest.mark.long] if _long else [])]
        _case.__module__, _case.pytestmark = __name__, _marks  # type: ignore[attr-defined]
        globals()[_name] = _case
del _case
