"""What a step is told, and what comes back: layout, stages, plans, markers, reports."""
