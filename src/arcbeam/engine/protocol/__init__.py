"""What a micro-batch is told, and what comes back: layout, stages, plans, markers, reports."""
