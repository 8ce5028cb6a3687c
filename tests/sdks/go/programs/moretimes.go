package main

import (
	"fmt"
	"sort"
	"time"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/graph/mtime"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/graph/window"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/sdf"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/state"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/timers"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/io/rtrackers/offsetrange"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/testing/teststream"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/transforms/periodic"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/transforms/stats"
)

func init() {
	programs["timerfamilies"] = timerFamilies
	programs["heldtimers"] = heldTimers
	programs["windowedstate"] = windowedState
	programs["clearing"] = clearing
	programs["estimators"] = estimators
	programs["dynamicsplits"] = dynamicSplits
	programs["periodic"] = periodically
	register.DoFn6x0[beam.EventTime, state.Provider, timers.Provider, string, int, func(string)](&familiesFn{})
	register.DoFn5x0[beam.EventTime, timers.Provider, string, int, func(beam.EventTime, int)](&heldFn{})
	register.Emitter2[beam.EventTime, int]()
	register.DoFn4x1[beam.Window, state.Provider, string, int, string](&windowedFn{})
	register.DoFn3x1[state.Provider, int, int, string](&clearFn{})
	register.DoFn4x1[
		*sdf.TimestampObservingWatermarkEstimator, *sdf.LockRTracker, int, func(beam.EventTime, int),
		sdf.ProcessContinuation,
	](&observedFn{})
	register.DoFn4x1[
		*sdf.WallTimeWatermarkEstimator, *sdf.LockRTracker, int, func(int), sdf.ProcessContinuation,
	](&wallTimeFn{})
	register.DoFn3x0[*sdf.LockRTracker, int, func(int)](&steadyFn{})
	register.Function2x1(formatNoKey)
	register.Function1x1(numberOf64)
}

// familiesFn has three families of timers. One of them is cleared, and one is set again before it fires.
type familiesFn struct {
	Sum           state.Value[int]
	One, Two, Not timers.EventTime
}

func at(millis int64) time.Time { return mtime.FromMilliseconds(millis).ToTime() }

func (f *familiesFn) ProcessElement(
	t beam.EventTime, sp state.Provider, tp timers.Provider, k string, x int, emit func(string),
) {
	sum, _, err := f.Sum.Read(sp)
	check(err)
	check(f.Sum.Write(sp, sum+x))
	f.One.Set(tp, at(10_000))
	f.One.Set(tp, at(20_000+int64(x)))
	f.Two.Set(tp, at(30_000), timers.WithTag("b"))
	f.Two.Set(tp, at(40_000), timers.WithTag("a"))
	f.Not.Set(tp, at(15_000))
	f.Not.Clear(tp)
}

func (f *familiesFn) OnTimer(
	t beam.EventTime, sp state.Provider, tp timers.Provider, k string, timer timers.Context, emit func(string),
) {
	sum, _, err := f.Sum.Read(sp)
	check(err)
	check(f.Sum.Write(sp, sum+100))
	if timer.Family == f.One.Family {
		f.Two.ClearTag(tp, "b")
		f.Two.Set(tp, at(35_000), timers.WithTag("c"))
	}
	emit(fmt.Sprint(k, " ", timer.Family, timer.Tag, " ", int64(t), " ", sum))
}

// Families of timers that set and clear those of others.
func timerFamilies(s beam.Scope) {
	c := teststream.NewConfig()
	check(c.AddElements(1000, 0, 1))
	check(c.AddElements(2000, 2, 3))
	check(c.AdvanceWatermark(12_000))
	check(c.AdvanceWatermark(25_000))
	check(c.AdvanceWatermark(32_000))
	check(c.AdvanceWatermarkToInfinity())
	pairs := beam.ParDo(s, keyed, teststream.Create(s, c))
	collect(s, "timers", beam.ParDo(s, &familiesFn{
		state.MakeValueState[int]("sum"), timers.InEventTime("One"), timers.InEventTime("Two"), timers.InEventTime("Not"),
	}, pairs))
}

// heldFn sets timers whose outputs have a time before their own.
type heldFn struct{ At timers.EventTime }

func (f *heldFn) ProcessElement(
	t beam.EventTime, tp timers.Provider, k string, x int, emit func(beam.EventTime, int),
) {
	f.At.Set(tp, at(25_000), timers.WithTag("held"), timers.WithOutputTimestamp(at(5_000)))
	f.At.Set(tp, at(26_000), timers.WithTag("free"), timers.WithNoOutputTimestamp())
	emit(t, x)
}

func (f *heldFn) OnTimer(
	t beam.EventTime, tp timers.Provider, k string, timer timers.Context, emit func(beam.EventTime, int),
) {
	if timer.Tag == "held" {
		emit(t, 100)
	} else {
		emit(mtime.FromMilliseconds(35_000), 1000)
	}
}

func formatNoKey(w beam.Window, x int) string { return fmt.Sprint(w, " ", x) }

// Timers that hold the watermark, and others that do not. Windows downstream wait for the former.
func heldTimers(s beam.Scope) {
	c := teststream.NewConfig()
	check(c.AddElements(1000, 0, 1, 2))
	check(c.AdvanceWatermark(20_000))
	check(c.AdvanceWatermark(30_000))
	check(c.AdvanceWatermarkToInfinity())
	pairs := beam.ParDo(s, keyed, teststream.Create(s, c))
	out := beam.ParDo(s, &heldFn{timers.InEventTime("At")}, pairs)
	sums := stats.Sum(s, beam.WindowInto(s, window.NewFixedWindows(10*time.Second), out))
	collect(s, "sums", beam.ParDo(s, formatNoKey, sums))
}

type windowedFn struct {
	Count state.Combining[int, int, int]
}

func (f *windowedFn) ProcessElement(w beam.Window, p state.Provider, k string, x int) string {
	// The SDK reads 0 after the first addition of a bundle, so the other order would show how bundles are cut.
	n, _, err := f.Count.Read(p)
	check(err)
	check(f.Count.Add(p, 1))
	return fmt.Sprint(k, w, n)
}

// State is separate for each window.
func windowedState(s beam.Scope) {
	some := beam.ParDo(s, keyed, beam.ParDo(s, stamped, beam.Create(s, 0, 1, 2, 3, 14, 17, 20, 21, 22, 40, 61)))
	for name, fn := range map[string]*window.Fn{
		"fixed": window.NewFixedWindows(10 * time.Second), "sliding": window.NewSlidingWindows(5*time.Second, 10*time.Second),
	} {
		in := beam.WindowInto(s, fn, some)
		fn := &windowedFn{state.MakeCombiningState[int, int, int]("count", add)}
		collect(s, name, beam.ParDo(s, fn, in))
	}
}

// clearFn clears state of each kind, and reads it after that.
type clearFn struct {
	Value   state.Value[int]
	Longest state.Combining[string, string, int]
	Map     state.Map[int, string]
	Set     state.Set[string]
	List    state.OrderedList[int]
}

func (f *clearFn) ProcessElement(p state.Provider, k int, x int) string {
	before, ok, err := f.Value.Read(p)
	check(err)
	found := fmt.Sprint(k, before, ok)
	check(f.Value.Write(p, x))
	check(f.Value.Clear(p))
	for _, each := range []string{"a", "abc", "ab"} {
		check(f.Longest.Add(p, each))
		check(f.Map.Put(p, len(each), each))
		check(f.Set.Add(p, each))
		check(f.List.Add(p, int64(len(each)), x))
	}
	longest, _, err := f.Longest.Read(p)
	check(err)
	check(f.Longest.Clear(p))
	_, known, err := f.Longest.Read(p)
	check(err)
	check(f.Map.Remove(p, 2))
	_, there, err := f.Map.Get(p, 2)
	check(err)
	three, _, err := f.Map.Get(p, 3)
	check(err)
	check(f.Map.Clear(p))
	keys, any, err := f.Map.Keys(p)
	check(err)
	check(f.Set.Remove(p, "ab"))
	left, _, err := f.Set.Keys(p)
	check(err)
	sort.Strings(left)
	check(f.Set.Clear(p))
	has, err := f.Set.Contains(p, "a")
	check(err)
	check(f.List.Clear(p))
	none, _, err := f.List.Read(p)
	check(err)
	return fmt.Sprint(found, longest, known, there, three, keys, any, left, has, none)
}

// Each kind of state is as new after it was cleared, also for the next element.
func clearing(s beam.Scope) {
	collect(s, "cleared", beam.ParDo(s, &clearFn{
		state.MakeValueState[int]("value"), state.MakeCombiningState[string, string, int]("longest", &longestFn{}),
		state.MakeMapState[int, string]("map"), state.MakeSetState[string]("set"),
		state.MakeOrderedListState[int]("list"),
	}, beam.ParDo(s, byRest, numbers(s, 12))))
}

// observedFn puts out n seconds of event time, one at a time; its watermark is that of its last output.
type observedFn struct{ pacedFn }

func (observedFn) InitialWatermarkEstimatorState(t beam.EventTime, rest offsetrange.Restriction, n int) int64 {
	return 1000 * rest.Start
}

func (observedFn) CreateWatermarkEstimator(millis int64) *sdf.TimestampObservingWatermarkEstimator {
	return &sdf.TimestampObservingWatermarkEstimator{State: time.UnixMilli(millis)}
}

func (observedFn) WatermarkEstimatorState(e *sdf.TimestampObservingWatermarkEstimator) int64 {
	return e.State.UnixMilli()
}

func (f *observedFn) ProcessElement(
	e *sdf.TimestampObservingWatermarkEstimator, tracker *sdf.LockRTracker, n int, emit func(beam.EventTime, int),
) sdf.ProcessContinuation {
	at := tracker.GetRestriction().(offsetrange.Restriction).Start
	if !tracker.TryClaim(at) {
		return sdf.StopProcessing()
	}
	emit(mtime.FromMilliseconds(1000*at), int(at))
	return sdf.ResumeProcessingIn(time.Millisecond)
}

// wallTimeFn has the time as its watermark.
type wallTimeFn struct{ pacedFn }

func (wallTimeFn) CreateWatermarkEstimator() *sdf.WallTimeWatermarkEstimator {
	return &sdf.WallTimeWatermarkEstimator{}
}

func (f *wallTimeFn) ProcessElement(
	e *sdf.WallTimeWatermarkEstimator, tracker *sdf.LockRTracker, n int, emit func(int),
) sdf.ProcessContinuation {
	return f.pacedFn.ProcessElement(tracker, n, emit)
}

// Watermarks that the SDK observes.
func estimators(s beam.Scope) {
	observed := beam.ParDo(s, &observedFn{}, beam.Create(s, 12))
	sums := stats.Sum(s, beam.WindowInto(s, window.NewFixedWindows(5*time.Second), observed))
	collect(s, "observed", beam.ParDo(s, formatNoKey, sums))
	collect(s, "walltime", beam.ParDo(s, number, beam.ParDo(s, &wallTimeFn{}, beam.Create(s, 5))))
}

// steadyFn has one restriction, which the runner may split while it is processed.
type steadyFn struct{ pacedFn }

func (f *steadyFn) ProcessElement(tracker *sdf.LockRTracker, n int, emit func(int)) {
	for at := tracker.GetRestriction().(offsetrange.Restriction).Start; tracker.TryClaim(at); at++ {
		emit(int(at))
		time.Sleep(20 * time.Millisecond)
	}
}

// A splittable DoFn that never returns by itself, for a few seconds.
func dynamicSplits(s beam.Scope) {
	collect(s, "claimed", beam.ParDo(s, number, beam.ParDo(s, &steadyFn{}, beam.Create(s, 200))))
}

func numberOf64(x int64) string { return fmt.Sprint(x) }

// The SDK's source of elements at fixed times, all of them past.
func periodically(s beam.Scope) {
	times := periodic.NewSequenceDefinition(time.UnixMilli(0), time.UnixMilli(5000), time.Second)
	collect(s, "elements", beam.ParDo(s, numberOf64, periodic.Sequence(s, beam.Create(s, times))))
}
