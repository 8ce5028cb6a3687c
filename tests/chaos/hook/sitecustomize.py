"""Imported by every Python process of a job under trial, before all else: see `tests.chaos.points`.

On the path of those processes alone.
"""

import os
import sys

if "ARCBEAM_TRIAL" in os.environ:
    sys.path.append(os.environ["ARCBEAM_TRIAL_ROOT"])
    from tests.chaos.points import install

    install()
