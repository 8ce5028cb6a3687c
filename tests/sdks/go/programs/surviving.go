package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/graph/mtime"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/sdf"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/state"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/timers"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/io/rtrackers/offsetrange"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"
)

func init() {
	programs["surviving"] = surviving
	programs["stopping"] = stopping
	programs["refusing"] = refusing
	register.DoFn3x1[*sdf.LockRTracker, int, func(int), sdf.ProcessContinuation](&slowFn{})
	register.DoFn3x1[*sdf.LockRTracker, int, func(int), sdf.ProcessContinuation](&allowedFn{})
	register.DoFn3x0[beam.BundleFinalization, int, func(int)](&confirmedFn{})
	register.DoFn5x0[state.Provider, timers.Provider, int, int, func(string)](&ordinalFn{})
	register.DoFn2x2[context.Context, int, string, error](&refuseFn{})
}

// slowFn puts out the numbers below its element. It is slower than a micro-batch may be, so it is also asked for
// checkpoints; from an even position it returns one itself.
type slowFn struct{ pacedFn }

func (f *slowFn) ProcessElement(tracker *sdf.LockRTracker, n int, emit func(int)) sdf.ProcessContinuation {
	at := tracker.GetRestriction().(offsetrange.Restriction).Start
	for last := at + 11 + 49*(at%2); at < last; at++ {
		if !tracker.TryClaim(at) {
			return sdf.StopProcessing()
		}
		emit(int(at))
		time.Sleep(15 * time.Millisecond)
	}
	return sdf.ResumeProcessingIn(time.Millisecond)
}

// allowedFn puts out the numbers below its element, as far as a file allows it.
type allowedFn struct {
	pacedFn
	File string
}

func (f *allowedFn) ProcessElement(tracker *sdf.LockRTracker, n int, emit func(int)) sdf.ProcessContinuation {
	var limit int64
	text, err := os.ReadFile(f.File)
	check(err)
	_, err = fmt.Sscan(string(text), &limit)
	check(err)
	for at := tracker.GetRestriction().(offsetrange.Restriction).Start; at < limit; at++ {
		if !tracker.TryClaim(at) {
			return sdf.StopProcessing()
		}
		emit(int(at))
	}
	return sdf.ResumeProcessingIn(50 * time.Millisecond)
}

// TruncateRestriction leaves nothing of a restriction that is drained.
func (f *allowedFn) TruncateRestriction(tracker *sdf.LockRTracker, n int) offsetrange.Restriction {
	start := tracker.GetRestriction().(offsetrange.Restriction).Start
	return offsetrange.Restriction{Start: start, End: start}
}

// confirmedFn asks for the finalization of each bundle.
type confirmedFn struct{}

func (*confirmedFn) ProcessElement(finalization beam.BundleFinalization, n int, emit func(int)) {
	finalization.RegisterCallback(time.Minute, func() error { return nil })
	emit(n)
}

// ordinalFn counts the elements of a key, and puts out the total at the end of the input.
type ordinalFn struct {
	Count state.Value[int]
	End   timers.EventTime
}

func (f *ordinalFn) ProcessElement(p state.Provider, t timers.Provider, k int, x int, emit func(string)) {
	n, _, err := f.Count.Read(p)
	check(err)
	reached("in a bundle")
	check(f.Count.Write(p, n+1))
	// The watermark stays at the beginning of time until the source has ended.
	f.End.Set(t, mtime.FromMilliseconds(0).ToTime())
	emit(fmt.Sprint(k, " ", n+1))
}

func (f *ordinalFn) OnTimer(p state.Provider, t timers.Provider, k int, timer timers.Context, emit func(string)) {
	n, _, err := f.Count.Read(p)
	check(err)
	emit(fmt.Sprint(k, " total ", n))
}

// reached reports a point of a tested job, if it is armed: see tests/chaos/points.py.
func reached(point string) {
	armed, err := os.ReadFile(filepath.Join(os.Getenv("ARCBEAM_TRIAL"), "point"))
	if err != nil || !strings.HasPrefix(string(armed), point+"/") {
		return
	}
	command := exec.Command("python", "-m", "tests.chaos.points", point)
	if said, err := command.CombinedOutput(); err != nil {
		panic(fmt.Sprint(err, ": ", string(said)))
	}
}

// Each kind of work that can be lost with a worker: restrictions, finalization, state, a timer, groups.
func surviving(s beam.Scope) { counted(s, beam.ParDo(s, &slowFn{}, beam.Create(s, 120))) }

// The same, for jobs that are stopped and resumed.
func stopping(s beam.Scope) {
	beam.PipelineOptions.Set("page_samples", "true")
	counted(s, beam.ParDo(s, &allowedFn{File: filepath.Join(*output, "limit")}, beam.Create(s, 120)))
}

func counted(s beam.Scope, numbers beam.PCollection) {
	some := beam.ParDo(s, &confirmedFn{}, numbers)
	pairs := beam.ParDo(s, byThree, some)
	fn := &ordinalFn{state.MakeValueState[int]("count"), timers.InEventTime("End")}
	collect(s, "counts", beam.Reshuffle(s, beam.ParDo(s, fn, pairs)))
	collect(s, "groups", beam.ParDo(s, formatNumbers, beam.GroupByKey(s, pairs)))
}

// refuseFn records each call, and fails.
type refuseFn struct{ File string }

func (f *refuseFn) ProcessElement(ctx context.Context, x int) (string, error) {
	if err := (&collectFn{f.File}).ProcessElement(fmt.Sprint(x)); err != nil {
		return "", err
	}
	return "", fmt.Errorf("no %d", x)
}

// A DoFn that fails in an unbounded pipeline.
func refusing(s beam.Scope) {
	some := beam.ParDo(s, &slowFn{}, beam.Create(s, 120))
	failed := beam.ParDo(s.Scope("Refuse"), &refuseFn{filepath.Join(*output, "calls")}, some)
	collect(s, "never", failed)
}
