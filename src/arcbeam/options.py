"""Every knob, once: its name, unit, default and meaning.

Owns the command-line options as a Beam `PipelineOptions` view. Nothing else in the project reads `argv` or the
environment for its settings.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import secrets
from arcbeam.errors import InvalidPipelineError

OPTIMIZATIONS = {
    "value_chains": "transforms that look at values only run element by element, as all others",
    "loops": "such transforms in a row run one after the other, not in one compiled loop",
    "record_lists": "what a bounded source reads is handed on record by record",
    "batches": "DoFns that take or make batches run as the SDK does it, by way of elements",
    "packed_blobs": "what crosses an exchange is not packed, also where that makes it smaller",
    "bulk_values": "elements are encoded one by one in exchanges, also where many at once are faster",
    "folds": "the add_input of every CombineFn is called for every element, also of those that everybody uses",
    "giving_up": "the table of a combine's half before an exchange is kept, also where it combines next to nothing",
    "quick_tasks": "Spark's Python workers stay as they are: after each task they look for garbage in all modules, "
    "and they acknowledge late what has come",
}
"""What `--disable_optimizations` may name, and what happens without each."""

LOOPBACK = "127.0.0.1"
"""Where nobody but this machine comes in."""

_ALL = "all"
"""Stands for every optimization in `--disable_optimizations`."""

_SOME = ("micro_batch_seconds", "backlog_micro_batch_seconds")
"""Options that mean nothing at zero or below, and are no whole numbers."""
_POSITIVE = ("shards", "bundle_elements", "group_memory_mb", "shutdown_seconds")
"""Options that mean nothing at zero or below."""
_NOT_NEGATIVE = ("bundle_seconds", "sdf_round_seconds", "sigterm_seconds")
"""Options that mean nothing below zero."""


ON_SIGTERM = ("suspend", "drain", "cancel")
"""What `--on_sigterm` may be."""

OF_THE_RUN = (
    "runner",
    "checkpoint_dir",
    "from_savepoint",
    "stage_mapping",
    "allow_dropped_state",
    "force_resume",
    "metrics_address",
)
"""Options that say where one run of one job begins: no other run has them, nor another job."""


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
            "--shutdown_seconds",
            type=float,
            default=60.0,
            help="Seconds that shutdown of all DoFns together may take when a job has ended, teardown, too, and in "
            "streaming finalization, each (default 60). Nobody waits longer; who has not answered is told.",
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
        batch.add_argument(
            "--metrics_address",
            default=None,
            help="Where the job tells its figures in Prometheus' text form while it runs: a port of this machine, "
            "reached from nowhere else, or host:port (default: nowhere).",
        )
        batch.add_argument(
            "--on_sigterm",
            default=None,
            help="What becomes of the job when the process that drives it is told to end: suspend, drain or cancel "
            "(default: suspend with --checkpoint_dir, else cancel). A bounded pipeline that does not "
            "run in streaming mode is "
            "cancelled. A second SIGTERM cancels.",
        )
        batch.add_argument(
            "--sigterm_seconds",
            type=float,
            default=25.0,
            help="Seconds that a job has to end after a SIGTERM (default 25: Kubernetes kills after 30). Six seconds "
            "before they are over (at half of them, if they are fewer than twelve) it is cancelled, if it still runs.",
        )
        streaming = parser.add_argument_group("arcbeam: streaming (with an unbounded input, or --streaming)")
        streaming.add_argument(
            "--micro_batch_seconds",
            "--step_seconds",  # its name in version 0.1: folders of jobs have it
            type=float,
            default=0.5,
            help="Seconds that a micro-batch should take; how much it does follows from what those "
            "before it took (default "
            "0.5).",
        )
        streaming.add_argument(
            "--backlog_micro_batch_seconds",
            "--backlog_step_seconds",  # as above
            type=float,
            default=5.0,
            help="The same for a job that is behind, where throughput is what counts (default 5; never less than "
            "--micro_batch_seconds).",
        )
        streaming.add_argument(
            "--checkpoint_dir",
            default=None,
            help="Folder or URL (s3://…, gs://…, hdfs://…) where an unbounded job keeps what it has made real; a job "
            "that is submitted again with the same folder goes on there (default: a folder of the run's own, which is "
            "gone with it).",
        )
        streaming.add_argument(
            "--from_savepoint",
            default=None,
            help="Go on from this savepoint of the job in --checkpoint_dir, and leave behind what came later. Each "
            "start with it goes back there again.",
        )
        streaming.add_argument(
            "--stage_mapping",
            action="append",
            default=None,
            help="A stage that is called otherwise than when the job last ran, old=new: its state goes on under the "
            "new name. The names are those of `arcbeam inspect`. May be repeated.",
        )
        streaming.add_argument(
            "--allow_dropped_state",
            action="store_true",
            default=False,
            help="Go on with a job though the pipeline has no place for some of what it has: the state of stages that "
            "are gone, and what these have not surely published. It is given up for good, and named in a warning.",
        )
        streaming.add_argument(
            "--force_resume",
            action="store_true",
            default=False,
            help="Go on with a job, or from a savepoint, that was drained or is done.",
        )

        speed = parser.add_argument_group(
            "arcbeam: optimizations",
            "Results are the same without them, only slower: for finding bugs.",
        )
        speed.add_argument(
            "--no_fusion",
            action="store_true",
            default=False,
            help="Run every transform in a stage of its own.",
        )
        without = "; ".join(f"{name}: {what}" for name, what in OPTIMIZATIONS.items())
        speed.add_argument(
            "--disable_optimizations",
            action="append",
            default=None,
            help="Optimizations to run without, separated by commas, or all. May be repeated. "
            f"What happens without each: {without}.",
        )

    @property
    def optimizations(self) -> dict[str, bool]:
        """Whether each optimization of the harness is on, by its name in `harness.operations.taskcontext.Settings`.

        Raises:
            InvalidPipelineError: `--disable_optimizations` names one that there is not.
        """
        # A list from the command line; a program may set one text.
        given: list[str] | str | None = self.disable_optimizations
        texts = [given] if isinstance(given, str) else given or ()
        disabled = {name for text in texts for each in text.split(",") if (name := each.strip())}
        unknown = sorted(disabled - OPTIMIZATIONS.keys() - {_ALL})
        if unknown:
            raise InvalidPipelineError(
                f"--disable_optimizations names what is no optimization: {', '.join(unknown)}",
                f"there are {', '.join(OPTIMIZATIONS)}, and {_ALL} for all of these; fusion is off with --no_fusion",
            )
        return {name: name not in disabled and _ALL not in disabled for name in OPTIMIZATIONS}

    @property
    def metrics_endpoint(self) -> tuple[str, int] | None:
        """Host and port of `--metrics_address`; None if it is not given.

        Raises:
            InvalidPipelineError: it is of another form.
        """
        given: str | int | None = self.metrics_address
        if given is None:
            return None
        host, _, port = str(given).rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise InvalidPipelineError(
                f"--metrics_address={given} is not of the form host:port", "give a port alone for this machine only"
            )
        return host.strip("[]") or LOOPBACK, int(port)

    @property
    def renamed_stages(self) -> dict[str, str]:
        """What `--stage_mapping` says: new names, by old ones.

        Raises:
            InvalidPipelineError: one has another form, or a stage is there twice.
        """
        given: list[str] | str | None = self.stage_mapping
        found: dict[str, str] = {}
        for text in [given] if isinstance(given, str) else given or ():
            # A stage's name may hold the sign, too: where there are several, the one in the middle counts.
            parts = text.split("=")
            half = len(parts) // 2
            old, new = "=".join(parts[:half]), "=".join(parts[half:])
            if len(parts) % 2 or not old or not new or found.get(old, new) != new:
                raise InvalidPipelineError(
                    f"--stage_mapping={text} is not of the form old=new, or names a stage again",
                    "give each stage once, by the names that `arcbeam inspect` and `arcbeam explain` show",
                )
            found[old] = new
        return found

    def check(self) -> None:
        """Refuses values that cannot be meant, before anything starts.

        Raises:
            InvalidPipelineError: naming every such option.
        """
        _ = self.optimizations  # raises
        least_of = dict.fromkeys(_POSITIVE, 1.0) | dict.fromkeys(_NOT_NEGATIVE, 0.0) | dict.fromkeys(_SOME, 0.001)
        wrong = [
            f"--{name}={value} (at least {least:g})"
            for name, least in least_of.items()
            if (value := getattr(self, name)) is not None and not (least <= value < math.inf)
        ]
        if wrong:
            raise InvalidPipelineError(
                f"options out of range: {', '.join(wrong)}",
                "give a finite number that is not smaller, or leave the option out: then it has its default",
            )
        _ = self.renamed_stages  # raises
        _ = self.metrics_endpoint  # raises
        for name in ("from_savepoint", "stage_mapping", "allow_dropped_state", "force_resume"):
            if getattr(self, name) and not self.checkpoint_dir:
                raise InvalidPipelineError(
                    f"--{name} is for a job that is gone on with", "name its folder with --checkpoint_dir"
                )
        if self.on_sigterm not in (None, *ON_SIGTERM):
            raise InvalidPipelineError(
                f"--on_sigterm={self.on_sigterm} is nothing that a job can do", f"give one of {', '.join(ON_SIGTERM)}"
            )
        if self.spark_master and self.spark_remote:
            raise InvalidPipelineError(
                "--spark_master and --spark_remote are both given", "give the one that the pipeline is to run on"
            )


def given(options: PipelineOptions) -> dict[str, Any]:
    """The options that were set, by plain names."""
    found: dict[str, Any] = options.get_all_options(drop_default=True)
    return found


WITHHELD = "arcbeam_secrets"
"""The option that stands, in what a job server has stored, for the secrets that it has not."""

_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
"""Environment variables with which a URL does without credentials of its own."""


def completed(
    stored: Mapping[str, Any], names: Collection[str], more: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The options of a job that is resumed, with the secrets that were not stored.

    A secret comes from an option that is given now, else from the environment (`secrets.variable`). Those of options
    that no program here knows, as a script's own, are not asked for: nothing of the stored pipeline reads them.

    Args:
        stored: options without secrets.
        names: of the secrets that were taken out.
        more: options that are given now; they take the place of stored ones. If Spark settings among them are all
            secrets that were taken out, the stored settings stay, too.
        environ: default: this process's.

    Raises:
        InvalidPipelineError: a secret is missing; the message names each.
    """
    env = os.environ if environ is None else environ
    found = {**stored, **more}
    given_keys = {f"spark_conf:{text.partition('=')[0].strip()}" for text in more.get("spark_conf") or ()}
    if given_keys and given_keys <= set(names):
        found["spark_conf"] = [*(stored.get("spark_conf") or ()), *more["spark_conf"]]
    wanted = {name for name in names if name not in given_keys and name not in more}
    known = PipelineOptions.from_dictionary({}).get_all_options().keys()
    wanted = {name for name in wanted if name.partition(":")[0] in known}
    values = secrets.in_environment(wanted, env)
    # A URL is stored without its credentials; the environment may have them for all URLs.
    by_itself = {name for name in wanted if stored.get(name) and any(env.get(each) for each in _CREDENTIALS)}
    if missing := wanted - values.keys() - by_itself:
        raise InvalidPipelineError(
            f"the job was submitted with secrets, which are not stored: {', '.join(sorted(missing))}",
            secrets.how_to_give(missing),
        )
    return secrets.joined(found, values)


def given_as(arguments: Sequence[str], unknown: str, refused: Collection[str], why: str, remedy: str) -> dict[str, Any]:
    """Options of a command line that are not for one pipeline's own script, by plain names.

    Args:
        arguments: of the command line.
        unknown: what to do about options that nobody knows.
        refused: names of options that have no place there.
        why: they have none.
        remedy: what to do about them.

    Raises:
        InvalidPipelineError: there are some that nobody knows, or that have no place.
    """
    view = PipelineOptions(list(arguments)).view_as(ArcbeamOptions)
    found = given(view)
    every = view.get_all_options(drop_default=True, retain_unknown_options=True)
    if strange := sorted(every.keys() - found.keys()):
        raise InvalidPipelineError(f"no such pipeline options: {_flags(strange)}", unknown)
    if misplaced := sorted(found.keys() & set(refused)):
        raise InvalidPipelineError(f"{why}: {_flags(misplaced)}", remedy)
    return found


def _flags(names: Sequence[str]) -> str:
    return ", ".join(f"--{name}" for name in names)
