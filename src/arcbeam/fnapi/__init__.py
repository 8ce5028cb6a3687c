"""Stages whose user code runs in an SDK worker of its own, over Beam's Fn API."""
