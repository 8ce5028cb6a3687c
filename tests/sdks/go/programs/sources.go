package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/sdf"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/io/rtrackers/offsetrange"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/io/textio"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"
)

func init() {
	programs["splitting"] = splitting
	programs["checkpointing"] = checkpointing
	programs["reading"] = reading
	programs["finalizing"] = finalizing
	register.DoFn3x0[*sdf.LockRTracker, int, func(string)](&splitFn{})
	register.DoFn3x1[*sdf.LockRTracker, int, func(string), sdf.ProcessContinuation](&checkpointFn{})
	register.DoFn3x0[beam.BundleFinalization, int, func(string)](&finalizeFn{})
}

// ranges has the restrictions of an element n: the numbers below n, at first in parts of four.
type ranges struct{}

func (ranges) CreateInitialRestriction(n int) offsetrange.Restriction {
	return offsetrange.Restriction{Start: 0, End: int64(n)}
}

func (ranges) SplitRestriction(n int, rest offsetrange.Restriction) []offsetrange.Restriction {
	return rest.SizedSplits(4)
}

func (ranges) RestrictionSize(n int, rest offsetrange.Restriction) float64 { return rest.Size() }

func (ranges) CreateTracker(rest offsetrange.Restriction) *sdf.LockRTracker {
	return sdf.NewLockRTracker(offsetrange.NewTracker(rest))
}

type splitFn struct{ ranges }

func (f *splitFn) ProcessElement(tracker *sdf.LockRTracker, n int, emit func(string)) {
	at := tracker.GetRestriction().(offsetrange.Restriction).Start
	for ; tracker.TryClaim(at); at++ {
		emit(fmt.Sprint(n, " ", at))
	}
}

// A splittable DoFn with initial splits.
func splitting(s beam.Scope) {
	collect(s, "claimed", beam.ParDo(s, &splitFn{}, beam.Create(s, 3, 10)))
}

type checkpointFn struct{ ranges }

func (f *checkpointFn) ProcessElement(tracker *sdf.LockRTracker, n int, emit func(string)) sdf.ProcessContinuation {
	at := tracker.GetRestriction().(offsetrange.Restriction).Start
	for count := 0; count < 2; count++ {
		if !tracker.TryClaim(at) {
			return sdf.StopProcessing()
		}
		emit(fmt.Sprint(n, " ", at))
		at++
	}
	return sdf.ResumeProcessingIn(10 * time.Millisecond)
}

// A splittable DoFn that returns a checkpoint after each two claims.
func checkpointing(s beam.Scope) {
	collect(s, "claimed", beam.ParDo(s, &checkpointFn{}, beam.Create(s, 3, 10)))
}

// The SDK's source of text files, itself a splittable DoFn.
func reading(s beam.Scope) {
	path := filepath.Join(*output, "input.txt")
	if err := os.WriteFile(path, []byte("one\ntwo\nthree\n"), 0o644); err != nil {
		panic(err)
	}
	collect(s, "lines", textio.Read(s, path))
}

type finalizeFn struct{ File string }

func (f *finalizeFn) ProcessElement(finalization beam.BundleFinalization, n int, emit func(string)) {
	finalization.RegisterCallback(time.Minute, func() error {
		return (&collectFn{f.File}).ProcessElement(fmt.Sprint(n))
	})
	emit(fmt.Sprint(n))
}

// A DoFn that is told when its bundle is committed.
func finalizing(s beam.Scope) {
	fn := &finalizeFn{filepath.Join(*output, "finalized")}
	collect(s, "numbers", beam.ParDo(s, fn, numbers(s, 5)))
}
