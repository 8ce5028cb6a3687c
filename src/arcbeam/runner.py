"""Composition root: `ArcbeamRunner` (placeholder while the first pipeline is brought up)."""
from apache_beam.runners.runner import PipelineRunner


class ArcbeamRunner(PipelineRunner):
    """Runs a Beam pipeline on Spark."""
