package main

import (
	"fmt"
	"time"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/sdf"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/state"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/io/rtrackers/offsetrange"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"
)

func init() {
	programs["counting"] = counting
	programs["draining"] = draining
	register.DoFn3x1[*sdf.LockRTracker, int, func(int), sdf.ProcessContinuation](&pacedFn{})
	register.DoFn3x1[*sdf.LockRTracker, int, func(int), sdf.ProcessContinuation](&truncatedFn{})
	register.DoFn3x1[state.Provider, int, int, string](&countFn{})
	register.Function1x2(byThree)
}

// pacedFn puts out the numbers below its element, one for each checkpoint.
type pacedFn struct{ ranges }

func (pacedFn) SplitRestriction(n int, rest offsetrange.Restriction) []offsetrange.Restriction {
	return []offsetrange.Restriction{rest}
}

func (f *pacedFn) ProcessElement(tracker *sdf.LockRTracker, n int, emit func(int)) sdf.ProcessContinuation {
	at := tracker.GetRestriction().(offsetrange.Restriction).Start
	if !tracker.TryClaim(at) {
		return sdf.StopProcessing()
	}
	emit(int(at))
	return sdf.ResumeProcessingIn(20 * time.Millisecond)
}

// truncatedFn keeps two numbers of a restriction that is drained.
type truncatedFn struct{ pacedFn }

func (f *truncatedFn) TruncateRestriction(tracker *sdf.LockRTracker, n int) offsetrange.Restriction {
	start := tracker.GetRestriction().(offsetrange.Restriction).Start
	return offsetrange.Restriction{Start: start, End: start + 2}
}

// countFn counts the elements of a key.
type countFn struct{ Count state.Value[int] }

func (f *countFn) ProcessElement(p state.Provider, k int, x int) string {
	n, _, err := f.Count.Read(p)
	check(err)
	check(f.Count.Write(p, n+1))
	return fmt.Sprint(k, " ", n+1)
}

func byThree(x int) (int, int) { return x % 3, x }

// Counts with state, during which processes are killed. What an attempt has written before it was killed would be
// written again, so lines are collected later.
func counting(s beam.Scope) {
	some := beam.ParDo(s, &pacedFn{}, beam.Create(s, 60))
	counts := beam.ParDo(s, &countFn{state.MakeValueState[int]("count")}, beam.ParDo(s, byThree, some))
	collect(s, "counts", beam.Reshuffle(s, counts))
}

// A splittable DoFn that ends soon only if it is drained.
func draining(s beam.Scope) {
	collect(s, "claimed", beam.ParDo(s, number, beam.ParDo(s, &truncatedFn{}, beam.Create(s, 1_000_000))))
}
