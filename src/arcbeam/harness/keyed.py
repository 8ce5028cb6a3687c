"""Stateful stages: placeholder until the driver of keys and timers lands."""
