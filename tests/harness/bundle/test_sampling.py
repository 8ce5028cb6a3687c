"""The SDK's state samplers of several processors, in turn on one thread."""

from __future__ import annotations

from apache_beam.runners.worker import statesampler
from apache_beam.utils.counters import CounterFactory

from arcbeam.harness.bundle.sampling import StateSampling


def test_each_bundle_makes_its_own_sampler_current() -> None:
    samplers = [statesampler.StateSampler(name, CounterFactory()) for name in ("first", "second")]
    first, second = (StateSampling(sampler) for sampler in samplers)
    for sampling, sampler in ((first, samplers[0]), (second, samplers[1]), (first, samplers[0])):
        sampling.begin()
        assert statesampler.get_current_tracker() is sampler
    second.end()
    assert statesampler.get_current_tracker() is samplers[0], "the end of another stage's task changes nothing"
    first.end()
    assert statesampler.get_current_tracker() is None
    assert all(sampler.finished for sampler in samplers)
