"""Splittable DoFns: placeholder until the driver of restrictions lands."""
