"""The streaming demo: a year of flights in the order of departure, with a driver that is killed half-way.

    python examples/flight_stream.py [--output build/demo-stream] [--delay 60] [--seconds 45]

The folder `flights` has its parts; read `stream.py` first.
"""

from __future__ import annotations

import sys

from flights.streaming import main

if __name__ == "__main__":
    sys.exit(main())
