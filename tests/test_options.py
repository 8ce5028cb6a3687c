"""The options of the runner: how optimizations are disabled, and what is rejected."""

from __future__ import annotations

import re
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam.errors import InvalidPipelineError
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.jobs.termination import OnSigterm
from arcbeam.model.plan import Plan
from arcbeam.model.rows import SHARDS_MAX
from arcbeam.optimizations import OPTIMIZATIONS
from arcbeam.options import ON_SIGTERM, ArcbeamOptions, given_as
from arcbeam.runner.job import default_shards
from tests.golden import check_message


def ours(*arguments: str, **values: Any) -> ArcbeamOptions:
    return PipelineOptions(list(arguments), **values).view_as(ArcbeamOptions)


def on_sigterm(options: ArcbeamOptions, *, bounded: bool) -> OnSigterm:
    return OnSigterm.of(options.on_sigterm, bounded=bounded, kept=bool(options.checkpoint_dir))


def disabled(options: ArcbeamOptions) -> set[str]:
    ours = {**options.optimizations, "local_exchange": bool(options.local_bytes)}
    assert ours.keys() == OPTIMIZATIONS.keys()
    return {name for name, on in ours.items() if not on}


def test_every_optimization_is_a_task_setting_or_of_the_plan() -> None:
    assert not disabled(ours())
    defaults = TaskSettings()
    assert {name: getattr(defaults, name) for name in OPTIMIZATIONS if name != "local_exchange"} == ours().optimizations
    assert ours("--local_exchange_kb=2").local_bytes == 2048
    assert ours("--local_exchange_kb=0").local_bytes == 0


@pytest.mark.parametrize(
    ("options", "off"),
    [
        (ours("--disable_optimizations=loops"), {"loops"}),
        (ours("--disable_optimizations=loops,folds"), {"loops", "folds"}),
        (ours("--disable_optimizations", "loops, folds,"), {"loops", "folds"}),
        (ours("--disable_optimizations=loops,folds", "--disable_optimizations=batches"), {"loops", "folds", "batches"}),
        (ours("--disable_optimizations=all"), OPTIMIZATIONS.keys()),
        (ours("--disable_optimizations=loops,all"), OPTIMIZATIONS.keys()),
        (ours("--disable_optimizations="), set()),
        (ours(disable_optimizations=["loops", "folds"]), {"loops", "folds"}),
        (ours(disable_optimizations="loops,folds"), {"loops", "folds"}),
    ],
)
def test_optimizations_are_disabled_by_name(options: ArcbeamOptions, off: set[str]) -> None:
    options.check()
    assert disabled(options) == off
    assert not options.no_fusion, "it is a separate option"


def test_disabled_optimizations_reach_a_job_server() -> None:
    options = ours("--disable_optimizations=loops,folds", "--disable_optimizations=batches")
    again = PipelineOptions.from_dictionary(options.get_all_options(drop_default=True)).view_as(ArcbeamOptions)
    assert again.optimizations == options.optimizations


@pytest.mark.parametrize("unknown", ["loop", "no_loops", "fusion", "Loops"])
def test_unknown_optimization_is_refused_by_name(unknown: str) -> None:
    options = ours(f"--disable_optimizations=folds,{unknown}")
    with pytest.raises(InvalidPipelineError, match=rf"optimization.*\b{unknown}\b") as caught:
        options.check()
    for name in (*OPTIMIZATIONS, "all", "--no_fusion"):
        assert name in str(caught.value)
    with pytest.raises(InvalidPipelineError):
        _ = options.optimizations


@pytest.mark.parametrize("value", ["-1", "0", "nan", "inf"])
def test_number_out_of_range_names_its_bound(value: str) -> None:
    for name in ("micro_batch_seconds", "backlog_micro_batch_seconds", "shutdown_seconds"):
        with pytest.raises(InvalidPipelineError) as refused:
            ours(f"--{name}={value}").check()
        check_message("options-out-of-range", str(refused.value), OPTION=re.compile(r"--[a-z_]+=\S+ \(at least \S+\)"))
    for name in ("bundle_seconds", "sdf_round_seconds", "sigterm_seconds"):
        if value != "0":
            with pytest.raises(InvalidPipelineError, match=rf"--{name}=\S+ \(at least 0\)"):
                ours(f"--{name}={value}").check()


def test_invalid_values_are_refused_together() -> None:
    with pytest.raises(InvalidPipelineError, match=r"--shards=0 .*--bundle_seconds=-1\.0"):
        ours("--shards=0", "--bundle_seconds=-1").check()
    with pytest.raises(InvalidPipelineError, match="--spark_master and --spark_remote"):
        ours("--spark_master=local", "--spark_remote=local").check()


@pytest.mark.contract("END-03", "END-04")
@pytest.mark.parametrize(
    ("arguments", "bounded", "how"),
    [
        ([], False, "cancel"),
        (["--checkpoint_dir=/jobs/a"], False, "suspend"),
        (["--checkpoint_dir=/jobs/a", "--on_sigterm=drain"], False, "drain"),
        (["--on_sigterm=drain"], False, "drain"),
        (["--checkpoint_dir=/jobs/a", "--on_sigterm=cancel"], False, "cancel"),
        (["--checkpoint_dir=/jobs/a"], True, "cancel"),
        (["--on_sigterm=suspend"], True, "cancel"),
    ],
)
def test_sigterm_ends_job_as_options_say(arguments: list[str], how: str, *, bounded: bool) -> None:
    assert on_sigterm(ours(*arguments), bounded=bounded) == how


def test_invalid_sigterm_options_are_refused() -> None:
    with pytest.raises(InvalidPipelineError, match="--on_sigterm=suspend "):
        on_sigterm(ours("--on_sigterm=suspend"), bounded=False)
    with pytest.raises(InvalidPipelineError, match=r"--on_sigterm=stop\n.*suspend, drain, cancel"):
        ours("--on_sigterm=stop").check()
    with pytest.raises(InvalidPipelineError, match=r"--sigterm_seconds=-1"):
        ours("--sigterm_seconds=-1").check()
    assert set(ON_SIGTERM) == {each.value for each in OnSigterm}


def test_resume_options_need_a_checkpoint_folder() -> None:
    with pytest.raises(InvalidPipelineError, match="--allow_dropped_state "):
        ours("--allow_dropped_state").check()


def test_number_of_shards_has_a_limit() -> None:
    ours(f"--shards={SHARDS_MAX}").check()
    with pytest.raises(InvalidPipelineError, match=f"--shards={SHARDS_MAX + 1}: a job has at most {SHARDS_MAX} "):
        ours(f"--shards={SHARDS_MAX + 1}").check()
    for plan in (Plan("job", (), (), bounded=True), Plan("job", (), (), bounded=False)):
        assert default_shards(plan, SHARDS_MAX + 1) == SHARDS_MAX


def test_unreadable_value_is_refused_without_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidPipelineError, match="argument --shards: invalid int value: 'x'"):
        given_as(["--shards=x"], "", (), "", "")
    assert capsys.readouterr().err == ""
