"""All pipeline options: name, unit, default and meaning.

Owns the options as a view of Beam's `PipelineOptions`. No other module reads `argv` or the environment for settings.
Each option is also accepted with hyphens: `--spark-master` is `--spark_master`.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import optimizations, secrets
from arcbeam.errors import InvalidPipelineError
from arcbeam.model.rows import SHARDS_MAX
from arcbeam.optimizations import LOCAL_EXCHANGE, OPTIMIZATIONS

LOOPBACK = "127.0.0.1"
"""The address that only this machine can reach."""

_SOME = ("micro_batch_seconds", "backlog_micro_batch_seconds")
"""Options that must be greater than zero; fractions are valid."""
_POSITIVE = ("shards", "bundle_elements", "group_memory_mb", "shutdown_seconds")
"""Options that must be at least 1."""
_NOT_NEGATIVE = ("local_exchange_kb", "bundle_seconds", "sdf_round_seconds", "sigterm_seconds")
"""Options that must be at least 0."""


_OF_A_RESUME = (
    "from_savepoint",
    "stage_mapping",
    "allow_dropped_state",
    "force_resume",
    "discard_later_micro_batches",
)
"""Options that need a job to resume."""

ON_SIGTERM = ("suspend", "drain", "cancel")
"""The values of `--on_sigterm`."""

SHARDS_MIN = 16
"""The least default number of shards of a streaming job: it may grow to that many cores."""

OF_THE_START = (
    "runner",
    "checkpoint_dir",
    "from_savepoint",
    "stage_mapping",
    "allow_dropped_state",
    "force_resume",
    "discard_later_micro_batches",
)
"""Options of one start of a job, such as the point where it begins. Later starts do not inherit them."""

ADDRESSES = ("metrics_address", "otlp_endpoint", "page_address")
"""Options with an address of one job. A later start keeps it; if it is given an empty one, it has none."""

OF_THE_JOB = (*OF_THE_START, *ADDRESSES, "page_samples")
"""Options of one job. Other jobs do not inherit them."""


class _Group:
    """A group of options. Each has a second spelling, with hyphens instead of underscores."""

    def __init__(self, parser: argparse.ArgumentParser, title: str, description: str | None = None) -> None:
        self._group = parser.add_argument_group(title, description)

    def add_argument(self, *names: str, **settings: Any) -> None:
        hyphenated = [name.replace("_", "-") for name in names if "_" in name]
        self._group.add_argument(*names, *hyphenated, **settings)


class ArcbeamOptions(PipelineOptions):  # type: ignore[misc]  # Beam is untyped
    """Options of the arcbeam runner; all are optional."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        spark = _Group(parser, "arcbeam: Spark")
        spark.add_argument(
            "--spark_master",
            default=None,
            help="Spark master of the session that arcbeam starts (default local[*,4]: all cores, three retries of a "
            "lost task). Ignored when a SparkSession is active.",
        )
        spark.add_argument(
            "--spark_conf",
            action="append",
            default=None,
            help="A Spark setting, key=value, of the session that arcbeam starts. May be repeated.",
        )
        spark.add_argument(
            "--spark_remote",
            default=None,
            help="Spark Connect address (sc://host:port, or local[n]) instead of a master.",
        )
        batch = _Group(parser, "arcbeam: execution")
        batch.add_argument(
            "--shards",
            type=int,
            default=None,
            help=f"Shards (partitions) of each exchange, at most {SHARDS_MAX}. Batch: one task each. Streaming: at "
            "most that many tasks per level (default: Spark's default parallelism; streaming: at least "
            f"{SHARDS_MIN}, except for bounded input in SDK workers).",
        )
        batch.add_argument(
            "--bundle_elements",
            type=int,
            default=500_000,
            help="Largest number of elements in a bundle (default 500000).",
        )
        batch.add_argument(
            "--bundle_seconds",
            type=float,
            default=30.0,
            help="Seconds after which a bundle ends (default 30).",
        )
        batch.add_argument(
            "--group_memory_mb",
            type=int,
            default=128,
            help="MiB of grouping buffers in one task before it spills them to disk (default 128).",
        )
        batch.add_argument(
            "--local_exchange_kb",
            type=int,
            default=4096,
            help="KiB that may wait between stages that run in one task; with more, each stage gets tasks of its own. "
            "0: always (default 4096).",
        )
        batch.add_argument(
            "--sdf_round_seconds",
            type=float,
            default=10.0,
            help="Batch: seconds for which a task processes restrictions before it splits off the rest for idle slots "
            "(default 10).",
        )
        batch.add_argument(
            "--shutdown_seconds",
            type=float,
            default=60.0,
            help="Seconds to wait for `shutdown` of all DoFns after a job has ended (default 60). The same limit holds "
            "for `teardown` of all DoFns, and in streaming for bundle finalization. When the limit is reached, arcbeam "
            "logs what timed out, and continues.",
        )
        batch.add_argument(
            "--arcbeam_temp",
            default=None,
            help="Folder or URL for side inputs and other temporary files of a job (default: a folder in the system's "
            "temporary folder). On a cluster, every executor must be able to reach it.",
        )
        batch.add_argument(
            "--keep_job_temp",
            action="store_true",
            default=False,
            help="Keep the job's temporary files for inspection.",
        )
        batch.add_argument(
            "--metrics_address",
            default=None,
            help="Address at which the running job serves metrics for Prometheus: a port, reachable only "
            "from this machine, or host:port; port 0 is any free port (default: no metrics).",
        )
        batch.add_argument(
            "--otlp_endpoint",
            default=None,
            help="URL of an OpenTelemetry collector (OTLP over HTTP), such as http://localhost:4318. A streaming job "
            "sends it a trace of each micro-batch; needs arcbeam[otel] (default: no traces).",
        )
        batch.add_argument(
            "--page_address",
            default=None,
            help="Port at which the running job shows itself in a browser on this machine; 0: a free one (default: no "
            "page). The log has its address and token.",
        )
        batch.add_argument(
            "--page_samples",
            action="store_true",
            default=False,
            help="Allow `arcbeam sample` and the page to show elements of a streaming job's stages on request.",
        )
        batch.add_argument(
            "--on_sigterm",
            default=None,
            help="What a SIGTERM to the driver does to the job: suspend, drain or cancel (default: suspend with "
            "--checkpoint_dir, else cancel). A batch job is always cancelled. A second SIGTERM cancels.",
        )
        batch.add_argument(
            "--sigterm_seconds",
            type=float,
            default=25.0,
            help="Seconds that a job has to end after a SIGTERM (default 25: Kubernetes kills after 30). arcbeam "
            "cancels a job that still runs six seconds before the limit; if the limit is below 12, at half of it.",
        )
        streaming = _Group(parser, "arcbeam: streaming (with an unbounded input, or --streaming)")
        streaming.add_argument(
            "--micro_batch_seconds",
            type=float,
            default=0.5,
            help="Target duration of a micro-batch, in seconds (default 0.5). The amount of work in it adapts to the "
            "duration of earlier ones.",
        )
        streaming.add_argument(
            "--backlog_micro_batch_seconds",
            type=float,
            default=5.0,
            help="Target duration of a micro-batch while the job has a backlog, where throughput matters more than "
            "latency (default 5; never less than --micro_batch_seconds).",
        )
        streaming.add_argument(
            "--checkpoint_dir",
            default=None,
            help="Folder or URL (s3://, gs://, abfs://, hdfs://) for the committed state of a streaming job (default: "
            "a temporary folder, removed at the end). Submitting a pipeline with the folder of an earlier job "
            "resumes that job.",
        )
        streaming.add_argument(
            "--from_savepoint",
            default=None,
            help="Resume the job in --checkpoint_dir from this savepoint.",
        )
        streaming.add_argument(
            "--discard_later_micro_batches",
            action="store_true",
            default=False,
            help="Let --from_savepoint discard later micro-batches permanently. Each start goes back again.",
        )
        streaming.add_argument(
            "--stage_mapping",
            action="append",
            default=None,
            help="A stage that was renamed since the job last ran, old=new: the new name gets its state. "
            "`arcbeam inspect` shows the names. May be repeated.",
        )
        streaming.add_argument(
            "--allow_dropped_state",
            action="store_true",
            default=False,
            help="Resume a job although the pipeline no longer has some of its stages. Their state, and their "
            "output that is not published yet, is deleted permanently. A warning lists it.",
        )
        streaming.add_argument(
            "--force_resume",
            action="store_true",
            default=False,
            help="Also resume a job that has ended because it was drained or had read all its input, or a savepoint "
            "of it.",
        )

        speed = _Group(
            parser,
            "arcbeam: optimizations",
            "For finding bugs: without optimizations, jobs are slower and the results are the same.",
        )
        speed.add_argument(
            "--no_fusion",
            action="store_true",
            default=False,
            help="Run every transform in a separate stage.",
        )
        without = "; ".join(f"{name}: {what}" for name, what in OPTIMIZATIONS.items())
        speed.add_argument(
            "--disable_optimizations",
            action="append",
            default=None,
            help="Optimizations to switch off, separated by commas, or all. May be repeated. "
            f"What happens without each: {without}.",
        )

    @property
    def optimizations(self) -> dict[str, bool]:
        """Whether each optimization of the harness is on, by its name in `harness.operations.taskcontext.TaskSettings`.

        Raises:
            InvalidPipelineError: `--disable_optimizations` names an unknown optimization.
        """
        disabled = optimizations.disabled(self.disable_optimizations)
        return {name: name not in disabled for name in OPTIMIZATIONS if name != LOCAL_EXCHANGE}

    @property
    def local_bytes(self) -> int:
        """Bytes that may wait between stages that run in one task; 0: each stage has tasks of its own."""
        is_off = LOCAL_EXCHANGE in optimizations.disabled(self.disable_optimizations)
        return 0 if is_off else int(self.local_exchange_kb) << 10

    @property
    def metrics_endpoint(self) -> tuple[str, int] | None:
        """Host and port of `--metrics_address`; None if it is not given.

        Raises:
            InvalidPipelineError: it has another form.
        """
        return self._endpoint("metrics_address")

    @property
    def page_port(self) -> int | None:
        """The port of `--page_address`; None if it is not given.

        Raises:
            InvalidPipelineError: it has another form, or other machines could reach it.
        """
        endpoint = self._endpoint("page_address")
        if endpoint is not None and endpoint[0] not in (LOOPBACK, "localhost"):
            raise InvalidPipelineError(
                f"--page_address={self.page_address} is an address that other machines can reach",
                "give only a port; for other machines, show the job with arcbeam page, which takes a token and TLS",
            )
        return None if endpoint is None else endpoint[1]

    def _endpoint(self, option: str) -> tuple[str, int] | None:
        given: str | int | None = getattr(self, option)
        if given is None:
            return None
        host, _, port = str(given).rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise InvalidPipelineError(
                f"--{option}={given} is not of the form host:port",
                "give host:port, or only a port to serve this machine alone",
            )
        return host.strip("[]") or LOOPBACK, int(port)

    @property
    def renamed_stages(self) -> dict[str, str]:
        """The mapping of `--stage_mapping`: new names, by old names.

        Raises:
            InvalidPipelineError: a value has another form, or a stage occurs twice.
        """
        given: list[str] | str | None = self.stage_mapping
        found: dict[str, str] = {}
        for text in [given] if isinstance(given, str) else given or ():
            # A stage's name may contain "=", too: with several, the one in the middle separates the names.
            parts = text.split("=")
            half = len(parts) // 2
            old, new = "=".join(parts[:half]), "=".join(parts[half:])
            if len(parts) % 2 or not old or not new or found.get(old, new) != new:
                raise InvalidPipelineError(
                    f"--stage_mapping={text} is not of the form old=new, or an earlier one maps the same stage",
                    "map each stage once, from its name by arcbeam inspect to its name by arcbeam explain",
                )
            found[old] = new
        return found

    def check(self) -> None:
        """Refuse invalid values before anything starts.

        Raises:
            InvalidPipelineError: an option is invalid; the message names it.
        """
        _ = self.optimizations  # raises
        least_of = dict.fromkeys(_POSITIVE, 1.0) | dict.fromkeys(_NOT_NEGATIVE, 0.0) | dict.fromkeys(_SOME, 0.001)
        wrong = [
            f"--{name}={value} (at least {least:g})"
            for name, least in least_of.items()
            if (value := getattr(self, name)) is not None and not (least <= value < math.inf)
        ]
        if self.shards is not None and self.shards > SHARDS_MAX:
            raise InvalidPipelineError(
                f"--shards={self.shards}: a job has at most {SHARDS_MAX} shards", f"give a number up to {SHARDS_MAX}"
            )
        if wrong:
            raise InvalidPipelineError(
                f"options out of range: {', '.join(wrong)}",
                "give a finite number of at least this minimum, or omit the option to use the default",
            )
        _ = self.renamed_stages  # raises
        _ = self.metrics_endpoint  # raises
        _ = self.page_port  # raises
        for name in _OF_A_RESUME:
            if getattr(self, name) and not self.checkpoint_dir:
                raise InvalidPipelineError(
                    f"--{name} needs a job to resume", "give the folder of the job with --checkpoint_dir"
                )
        if self.on_sigterm not in (None, *ON_SIGTERM):
            raise InvalidPipelineError(
                f"unknown value --on_sigterm={self.on_sigterm}", f"give one of {', '.join(ON_SIGTERM)}"
            )
        if self.spark_master and self.spark_remote:
            raise InvalidPipelineError(
                "--spark_master and --spark_remote exclude each other", "give only the one on which to run the pipeline"
            )


def given(options: PipelineOptions) -> dict[str, Any]:
    """Return the options that were set, by plain names."""
    found: dict[str, Any] = options.get_all_options(drop_default=True)
    return found


def with_defaults(options: Mapping[str, Any]) -> list[str]:
    """Return the plain names of those options that have their default: Beam's SDKs send them to a server, too."""
    known = PipelineOptions([]).get_all_options()
    return sorted(name for name, value in options.items() if name in known and str(value) == str(known[name]))


WITHHELD = "arcbeam_secrets"
"""The option that lists, in a job server's stored options, the secrets that are not stored."""

_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
"""Environment variables that replace credentials in a URL: what obstore reads. It reads no profile."""


def completed(
    stored: Mapping[str, Any], names: Collection[str], more: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the options of a job that is resumed, with the secrets that were not stored.

    A secret comes from an option that is given now, else from the environment (`secrets.variable`). Secrets of unknown
    options, such as a script's own, are not required: the stored pipeline does not read them.

    Args:
        stored: options without secrets.
        names: of the secrets that were removed.
        more: options that are given now; they replace stored ones. If all Spark settings among them are removed
            secrets, the stored settings stay, too.
        environ: default: the environment of this process.

    Raises:
        InvalidPipelineError: secrets are missing; the message names each.
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
    # A URL is stored without its credentials; the environment may have credentials for all URLs.
    urls = {name for name in wanted if stored.get(name) and any(env.get(each) for each in _CREDENTIALS)}
    if missing := wanted - values.keys() - urls:
        raise InvalidPipelineError(
            f"the job was submitted with secrets, which are not stored: {', '.join(sorted(missing))}",
            secrets.how_to_give(missing),
        )
    return secrets.joined(found, values)


def given_as(arguments: Sequence[str], unknown: str, refused: Collection[str], why: str, remedy: str) -> dict[str, Any]:
    """Return pipeline options of a command line that has no script, by plain names.

    Args:
        arguments: of the command line. Hyphens in options' names count as underscores.
        unknown: the remedy for unknown options.
        refused: names of options that are invalid here.
        why: they are invalid.
        remedy: for them.

    Raises:
        InvalidPipelineError: an option is unknown or invalid here.
    """
    errors = StringIO()
    try:
        with redirect_stderr(errors):
            view = PipelineOptions([underscored(argument) for argument in arguments]).view_as(ArcbeamOptions)
            found = given(view)
    except SystemExit:
        # What argparse refuses: it prints the usage of all options, and then the reason.
        reason = errors.getvalue().rpartition("error: ")[2].strip()
        raise InvalidPipelineError(f"pipeline options cannot be read: {reason}", "correct the value") from None
    every = view.get_all_options(drop_default=True, retain_unknown_options=True)
    if strange := sorted(every.keys() - found.keys()):
        raise InvalidPipelineError(f"unknown pipeline options: {_flags(strange)}", unknown)
    if misplaced := sorted(found.keys() & set(refused)):
        raise InvalidPipelineError(f"{why}: {_flags(misplaced)}", remedy)
    return found


def underscored(argument: str) -> str:
    """Return a command line's argument with underscores for the hyphens in the name of an option."""
    if not argument.startswith("--"):
        return argument
    name, mark, value = argument[2:].partition("=")
    return f"--{name.replace('-', '_')}{mark}{value}"


def _flags(names: Sequence[str]) -> str:
    return ", ".join(f"--{name}" for name in names)
