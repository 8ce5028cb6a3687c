"""Every Python process of a tested job imports this first: see `tests.chaos.points`.

It is on the path of those processes only.
"""

import os
import sys

if "ARCBEAM_TRIAL" in os.environ:
    sys.path.append(os.environ["ARCBEAM_TRIAL_ROOT"])
    from tests.chaos.points import install

    install()
