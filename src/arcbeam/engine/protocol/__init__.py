"""The messages between driver and tasks: layout, stages, plans, markers, reports."""
