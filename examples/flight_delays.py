"""The demo: a year of flights from New York, joined with the weather, in hourly and session windows.

    arcbeam run examples/flight_delays.py [--output build/demo]

The folder `flights` has its parts; read `pipeline.py` first.
"""

from __future__ import annotations

import sys

from flights.main import main

if __name__ == "__main__":
    sys.exit(main())
