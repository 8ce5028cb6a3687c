"""Grouping by key and window: windows, triggers, panes."""
