package main

import (
	"fmt"
	"sort"
	"time"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/graph/mtime"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/graph/window"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/graph/window/trigger"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/state"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/timers"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/typex"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/testing/teststream"
)

func init() {
	programs["windows"] = windows
	programs["windowedsides"] = windowedSides
	programs["triggers"] = triggers
	programs["state"] = states
	programs["maps"] = maps
	programs["orderedlist"] = orderedList
	programs["timers"] = timed
	programs["processingtime"] = processingTimed
	programs["scriptedclock"] = scriptedClock
	register.Function1x2(stamped)
	register.Function1x2(keyed)
	register.Function4x1(formatWindow)
	register.Function4x1(formatPane)
	register.Function3x1(lookInWindow)
	register.DoFn3x1[state.Provider, int, int, string](&stateFn{})
	register.DoFn3x1[state.Provider, int, int, string](&mapFn{})
	register.DoFn3x1[state.Provider, int, int, string](&orderedFn{})
	register.Function2x1(add)
}

func stamped(x int) (beam.EventTime, int) { return mtime.FromMilliseconds(int64(x) * 1000), x }
func keyed(x int) (string, int)           { return []string{"even", "odd"}[x%2], x }

func seconds(t typex.Window) int64 { return int64(t.MaxTimestamp()) / 1000 }

func formatWindow(w beam.Window, t beam.EventTime, k string, values func(*int) bool) string {
	found := all(values)
	sort.Ints(found)
	return fmt.Sprint(k, found, w, int64(t))
}

// Fixed, sliding and session windows.
func windows(s beam.Scope) {
	some := beam.ParDo(s, keyed, beam.ParDo(s, stamped, beam.Create(s, 0, 1, 2, 3, 14, 17, 20, 21, 22, 40, 61)))
	for name, fn := range map[string]*window.Fn{
		"fixed":    window.NewFixedWindows(10 * time.Second),
		"sliding":  window.NewSlidingWindows(5*time.Second, 10*time.Second),
		"sessions": window.NewSessions(5 * time.Second),
	} {
		groups := beam.GroupByKey(s, beam.WindowInto(s, fn, some))
		collect(s, name, beam.ParDo(s, formatWindow, groups))
	}
}

func lookInWindow(w beam.Window, x int, side func(*int) bool) string {
	found := all(side)
	sort.Ints(found)
	return fmt.Sprint(x, found, w)
}

// A side input with other windows than the main input.
func windowedSides(s beam.Scope) {
	some := beam.ParDo(s, stamped, beam.Create(s, 1, 5, 12, 27))
	main := beam.WindowInto(s, window.NewFixedWindows(5*time.Second), some)
	other := beam.ParDo(s, stamped, beam.Create(s, 2, 3, 14, 19))
	side := beam.WindowInto(s, window.NewFixedWindows(10*time.Second), other)
	collect(s, "looked", beam.ParDo(s, lookInWindow, main, beam.SideInput{Input: side}))
}

func formatPane(pn beam.PaneInfo, w beam.Window, k string, values func(*int) bool) string {
	found := all(values)
	sort.Ints(found)
	return fmt.Sprint(k, found, w, pn.Timing, pn.IsFirst, pn.IsLast, pn.Index)
}

// A TestStream: early, on-time and late panes, in accumulating and discarding mode.
func triggers(s beam.Scope) {
	c := teststream.NewConfig()
	check(c.AddElements(1000, 0, 2))
	check(c.AddElements(2000, 4))
	check(c.AdvanceWatermark(5000))
	check(c.AddElements(6000, 6, 1))
	check(c.AdvanceWatermark(12000))
	check(c.AddElements(7000, 8))
	check(c.AddElements(13000, 10))
	check(c.AdvanceWatermarkToInfinity())
	some := beam.ParDo(s, keyed, teststream.Create(s, c))
	early := trigger.AfterEndOfWindow().
		EarlyFiring(trigger.Repeat(trigger.AfterCount(2))).LateFiring(trigger.Repeat(trigger.AfterCount(1)))
	ten := window.NewFixedWindows(10 * time.Second)
	for name, mode := range map[string]beam.WindowIntoOption{
		"accumulating": beam.PanesAccumulate(), "discarding": beam.PanesDiscard(),
	} {
		in := beam.WindowInto(s, ten, some, beam.Trigger(early), beam.AllowedLateness(time.Minute), mode)
		collect(s, name, beam.ParDo(s, formatPane, beam.GroupByKey(s, in)))
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func add(a, b int) int { return a + b }

// One key's elements, by state of each kind. The order in which elements arrive is not known, so only what does not
// depend on it is put out, with the last one.
type stateFn struct {
	Value state.Value[int]
	Bag   state.Bag[int]
	Sum   state.Combining[int, int, int]
}

func (f *stateFn) ProcessElement(p state.Provider, k int, x int) string {
	n, _, err := f.Value.Read(p)
	check(err)
	check(f.Value.Write(p, n+1))
	check(f.Bag.Add(p, x))
	check(f.Sum.Add(p, x))
	if n+1 < 5 {
		return ""
	}
	bag, _, err := f.Bag.Read(p)
	check(err)
	sort.Ints(bag)
	sum, _, err := f.Sum.Read(p)
	check(err)
	check(f.Bag.Clear(p))
	empty, _, err := f.Bag.Read(p)
	check(err)
	return fmt.Sprint(k, n+1, bag, sum, empty)
}

// A value, a bag and a combining state.
func states(s beam.Scope) {
	pairs := beam.ParDo(s, byRest, numbers(s, 20))
	fn := &stateFn{
		state.MakeValueState[int]("value"), state.MakeBagState[int]("bag"),
		state.MakeCombiningState[int, int, int]("sum", add),
	}
	collect(s, "states", beam.ParDo(s, fn, pairs))
}

// Maps and sets.
type mapFn struct {
	Map  state.Map[string, int]
	Set  state.Set[int]
	Seen state.Value[int]
}

func (f *mapFn) ProcessElement(p state.Provider, k int, x int) string {
	n, _, err := f.Seen.Read(p)
	check(err)
	check(f.Seen.Write(p, n+1))
	key := fmt.Sprint("key", x%3)
	sum, _, err := f.Map.Get(p, key)
	check(err)
	check(f.Map.Put(p, key, sum+x))
	check(f.Set.Add(p, x%3))
	if n+1 < 5 {
		return ""
	}
	keys, _, err := f.Map.Keys(p)
	check(err)
	sort.Strings(keys)
	found := fmt.Sprint(k, keys)
	for _, each := range keys {
		v, _, err := f.Map.Get(p, each)
		check(err)
		found += fmt.Sprint(" ", v)
	}
	has, err := f.Set.Contains(p, 2)
	check(err)
	check(f.Map.Remove(p, "key0"))
	check(f.Set.Clear(p))
	left, _, err := f.Map.Keys(p)
	check(err)
	sort.Strings(left)
	none, _, err := f.Set.Keys(p)
	check(err)
	return fmt.Sprint(found, has, left, none)
}

func maps(s beam.Scope) {
	pairs := beam.ParDo(s, byRest, numbers(s, 20))
	fn := &mapFn{
		state.MakeMapState[string, int]("map"), state.MakeSetState[int]("set"), state.MakeValueState[int]("seen"),
	}
	collect(s, "maps", beam.ParDo(s, fn, pairs))
}

// An ordered list.
type orderedFn struct {
	List state.OrderedList[string]
	Seen state.Value[int]
}

func (f *orderedFn) ProcessElement(p state.Provider, k int, x int) string {
	n, _, err := f.Seen.Read(p)
	check(err)
	check(f.Seen.Write(p, n+1))
	check(f.List.Add(p, int64(10-x), fmt.Sprint("v", x)))
	if n+1 < 5 {
		return ""
	}
	whole, _, err := f.List.Read(p)
	check(err)
	part, _, err := f.List.ReadRange(p, -5, 3)
	check(err)
	check(f.List.ClearRange(p, -5, 3))
	left, _, err := f.List.Read(p)
	check(err)
	return fmt.Sprint(k, whole, part, left)
}

func orderedList(s beam.Scope) {
	pairs := beam.ParDo(s, byRest, numbers(s, 20))
	fn := &orderedFn{state.MakeOrderedListState[string]("list"), state.MakeValueState[int]("seen")}
	collect(s, "lists", beam.ParDo(s, fn, pairs))
}

// timerFn sets an event-time timer for each element, another one by tag, and clears a third.
type timerFn struct {
	Count state.Value[int]
	At    timers.EventTime
}

func (f *timerFn) ProcessElement(t beam.EventTime, sp state.Provider, tp timers.Provider, k string, x int, emit func(string)) {
	n, _, err := f.Count.Read(sp)
	check(err)
	check(f.Count.Write(sp, n+1))
	f.At.Set(tp, t.ToTime().Add(time.Minute))
	f.At.Set(tp, mtime.FromMilliseconds(int64(x)*2000+30000).ToTime(), timers.WithTag(fmt.Sprint(x%2)))
	f.At.Set(tp, t.ToTime().Add(time.Second), timers.WithTag("never"))
	f.At.ClearTag(tp, "never")
	emit(fmt.Sprint("element ", k, x))
}

func (f *timerFn) OnTimer(t beam.EventTime, sp state.Provider, tp timers.Provider, k string, timer timers.Context, emit func(string)) {
	n, _, err := f.Count.Read(sp)
	check(err)
	emit(fmt.Sprint("timer ", k, " ", timer.Family, timer.Tag, " ", int64(t), " ", n))
	if timer.Tag == "1" {
		f.At.Set(tp, t.ToTime().Add(time.Hour), timers.WithTag("again"))
	}
}

// Event-time timers with tags, set and cleared; a TestStream, so that their order is known.
func timed(s beam.Scope) {
	c := teststream.NewConfig()
	check(c.AddElements(1000, 0, 1))
	check(c.AdvanceWatermark(1500))
	check(c.AddElements(2000, 2, 3))
	check(c.AdvanceWatermark(32000))
	check(c.AdvanceWatermark(62000))
	check(c.AdvanceWatermarkToInfinity())
	pairs := beam.ParDo(s, keyed, teststream.Create(s, c))
	fn := &timerFn{state.MakeValueState[int]("count"), timers.InEventTime("At")}
	collect(s, "timers", beam.ParDo(s, fn, pairs))
}

type processingFn struct {
	Bag   state.Bag[int]
	Soon  timers.ProcessingTime
	Delay time.Duration
}

func (f *processingFn) ProcessElement(sp state.Provider, tp timers.Provider, k string, x int, emit func(string)) {
	check(f.Bag.Add(sp, x))
	f.Soon.Set(tp, time.Now().Add(f.Delay))
}

func (f *processingFn) OnTimer(sp state.Provider, tp timers.Provider, k string, timer timers.Context, emit func(string)) {
	found, _, err := f.Bag.Read(sp)
	check(err)
	check(f.Bag.Clear(sp))
	for _, each := range found {
		emit(fmt.Sprint(k, each))
	}
}

// A processing-time timer.
func processingTimed(s beam.Scope) {
	pairs := beam.ParDo(s, keyed, numbers(s, 10))
	fn := &processingFn{state.MakeBagState[int]("bag"), timers.InProcessingTime("Soon"), 100 * time.Millisecond}
	collect(s, "elements", beam.ParDo(s, fn, pairs))
}

// Processing-time timers, and a TestStream that advances the clock.
func scriptedClock(s beam.Scope) {
	c := teststream.NewConfig()
	check(c.AddElements(1000, 0, 1))
	c.AdvanceProcessingTime(600_000)
	check(c.AddElements(2000, 2, 3))
	check(c.AdvanceWatermarkToInfinity())
	pairs := beam.ParDo(s, keyed, teststream.Create(s, c))
	fn := &processingFn{state.MakeBagState[int]("bag"), timers.InProcessingTime("Soon"), 5 * time.Minute}
	collect(s, "elements", beam.ParDo(s, fn, pairs))
}

func byRest(x int) (int, int) { return x % 4, x }

func init() {
	register.Function1x2(byRest)
	register.DoFn6x0[beam.EventTime, state.Provider, timers.Provider, string, int, func(string)](&timerFn{})
	register.DoFn5x0[state.Provider, timers.Provider, string, int, func(string)](&processingFn{})
}
