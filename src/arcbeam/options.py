"""Every knob, once: its name, unit, default and meaning.

Owns the command-line options as a Beam `PipelineOptions` view. Nothing else in the project reads `argv` or the
environment for its settings.
"""

from __future__ import annotations

import argparse

from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam.errors import InvalidPipelineError

OPTIMIZATIONS = {
    "fusion": "Run every transform in a stage of its own.",
    "value_chains": "Run transforms that look at values only element by element, as all others.",
    "loops": "Run such transforms in a row one after the other, not in one compiled loop.",
    "record_lists": "Hand on what a bounded source reads record by record.",
    "batches": "Run DoFns that take or make batches as the SDK does, by way of elements.",
    "bulk_values": "Encode elements one by one in exchanges, also where many at once are faster.",
    "folds": "Call the add_input of every CombineFn for every element, also of those that everybody uses.",
    "giving_up": "Keep the table of a combine's half before an exchange, also where it combines next to nothing.",
    "quick_tasks": "Leave Spark's Python workers as they are: behind each task they look for garbage in all modules, "
    "and they acknowledge late what has come.",
}
"""What each option `--no_…` does."""

_POSITIVE = ("shards", "bundle_elements", "group_memory_mb")
"""Options that mean nothing at zero or below."""
_NOT_NEGATIVE = ("bundle_seconds", "sdf_round_seconds")
"""Options that mean nothing below zero."""


class ArcbeamOptions(PipelineOptions):  # type: ignore[misc]  # Beam is untyped
    """Options of the arcbeam runner; all may be left out."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        spark = parser.add_argument_group("arcbeam: Spark")
        spark.add_argument(
            "--spark_master",
            default=None,
            help="Spark master for a session of our own (default local[*,4]: all cores, three retries of a lost "
            "task). Ignored when a SparkSession is active.",
        )
        spark.add_argument(
            "--spark_conf",
            action="append",
            default=None,
            help="A Spark setting, key=value, for a session of our own. May be repeated.",
        )
        spark.add_argument(
            "--spark_remote",
            default=None,
            help="Spark Connect address (sc://host:port, or local[n]) instead of a master.",
        )
        batch = parser.add_argument_group("arcbeam: execution")
        batch.add_argument(
            "--shards",
            type=int,
            default=None,
            help="Shards of an exchange: how many tasks read it (default: Spark's default parallelism).",
        )
        batch.add_argument(
            "--bundle_elements",
            type=int,
            default=500_000,
            help="Elements after which a bundle is cut (default 500000).",
        )
        batch.add_argument(
            "--bundle_seconds",
            type=float,
            default=30.0,
            help="Seconds after which a bundle is cut (default 30).",
        )
        batch.add_argument(
            "--group_memory_mb",
            type=int,
            default=128,
            help="MiB that one task may hold in grouping buffers before it writes them out (default 128).",
        )
        batch.add_argument(
            "--sdf_round_seconds",
            type=float,
            default=10.0,
            help="Seconds a task may spend on restrictions before it splits off the rest for idle slots (default 10).",
        )
        batch.add_argument(
            "--arcbeam_temp",
            default=None,
            help="Folder or URL for side inputs and other files of a running job (default: a folder in the system's "
            "temporary folder; on a cluster it must be reachable from every executor).",
        )
        batch.add_argument(
            "--keep_job_temp",
            action="store_true",
            default=False,
            help="Leave the job's temporary files for inspection.",
        )

        speed = parser.add_argument_group(
            "arcbeam: optimizations",
            "Each can be switched off. Results are the same, only slower: for finding bugs.",
        )
        for name, what in OPTIMIZATIONS.items():
            speed.add_argument(f"--no_{name}", action="store_true", default=False, help=what)

    @property
    def optimizations(self) -> dict[str, bool]:
        """Whether each optimization of the harness is on, by its name in `harness.operations.taskcontext.Settings`."""
        return {name: not getattr(self, f"no_{name}") for name in OPTIMIZATIONS if name != "fusion"}

    def check(self) -> None:
        """Refuses values that cannot be meant, before anything starts.

        Raises:
            InvalidPipelineError: naming every such option.
        """
        given = [(name, 1) for name in _POSITIVE] + [(name, 0) for name in _NOT_NEGATIVE]
        wrong = [
            f"--{name}={value} (at least {least})"
            for name, least in given
            if (value := getattr(self, name)) is not None and value < least
        ]
        if wrong:
            raise InvalidPipelineError(f"too small: {', '.join(wrong)}", "leave out what has no reason")
        if self.spark_master and self.spark_remote:
            raise InvalidPipelineError(
                "--spark_master and --spark_remote are both given", "give the one that the pipeline is to run on"
            )
