package main

import (
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/graph/mtime"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/graph/window"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/sdf"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/typex"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/util/reflectx"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/io/rtrackers/offsetrange"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"
)

var expansion = flag.String("expansion", "", "Address of the service that expands transforms of another SDK.")

func init() {
	programs["crossing"] = crossing
	programs["crossingstream"] = crossingStream
	register.Function1x2(withLength)
	register.Function2x1(formatInWindow)
	register.Function3x1(formatGroup)
	register.DoFn4x1[
		*sdf.ManualWatermarkEstimator, *sdf.LockRTracker, int, func(beam.EventTime, string), sdf.ProcessContinuation,
	](&timedFn{})
	register.Emitter2[beam.EventTime, string]()
}

func withLength(word string) (string, int) { return word, len(word) }

func formatInWindow(w beam.Window, line string) string { return fmt.Sprint(line, " ", w) }

func formatGroup(w beam.Window, word string, lengths func(*int) bool) string {
	return fmt.Sprint(word, " ", len(all(lengths)), " ", w)
}

// The third part of the name has the SDK send a producer of the input, which an expansion service of Python requires.
const countURN = "arcbeam:test:python:count:v1"

// cross puts words through a transform of another SDK, between ParDos and beside a GroupByKey of this one.
func cross(s beam.Scope, words beam.PCollection) {
	text := beam.UnnamedOutput(typex.New(reflectx.String))
	crossed := beam.CrossLanguage(s, countURN, nil, *expansion, beam.UnnamedInput(words), text)
	collect(s, "crossed", beam.ParDo(s, formatInWindow, crossed[beam.UnnamedOutputTag()]))
	collect(s, "groups", beam.ParDo(s, formatGroup, beam.GroupByKey(s, beam.ParDo(s, withLength, words))))
}

func crossing(s beam.Scope) { cross(s, beam.ParDo(s, split, beam.Create(s, text, "fox naïve"))) }

// timedFn puts out the first n words, each a second after the one before, and with its watermark.
type timedFn struct{ pacedFn }

func (timedFn) InitialWatermarkEstimatorState(t beam.EventTime, rest offsetrange.Restriction, n int) int64 {
	return 1000 * rest.Start
}

func (timedFn) CreateWatermarkEstimator(millis int64) *sdf.ManualWatermarkEstimator {
	return &sdf.ManualWatermarkEstimator{State: time.UnixMilli(millis)}
}

func (timedFn) WatermarkEstimatorState(e *sdf.ManualWatermarkEstimator) int64 {
	return e.State.UnixMilli()
}

func (f *timedFn) ProcessElement(
	e *sdf.ManualWatermarkEstimator, tracker *sdf.LockRTracker, n int, emit func(beam.EventTime, string),
) sdf.ProcessContinuation {
	at := tracker.GetRestriction().(offsetrange.Restriction).Start
	if !tracker.TryClaim(at) {
		return sdf.StopProcessing()
	}
	emit(mtime.FromMilliseconds(1000*at), strings.Fields(text)[at])
	e.UpdateWatermark(time.UnixMilli(1000 * (at + 1)))
	return sdf.ResumeProcessingIn(time.Millisecond)
}

// The same with an unbounded input in windows.
func crossingStream(s beam.Scope) {
	words := beam.ParDo(s, &timedFn{}, beam.Create(s, 12))
	cross(s, beam.WindowInto(s, window.NewFixedWindows(6*time.Second), words))
}
