package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/graph/window"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/io/textio"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/transforms/filter"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/transforms/stats"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/transforms/top"
)

func init() {
	programs["parts"] = partitions
	programs["statistics"] = statistics
	programs["coders"] = ownCoders
	programs["lifecycle"] = lifecycle
	programs["options"] = givenOptions
	programs["writing"] = writing
	programs["combining"] = combining
	programs["moresides"] = moreSides
	register.Function1x1(restOfThree)
	register.Function9x0(spread)
	register.Function1x1(isEven)
	register.Function2x1(lessThan)
	register.Function2x1(isShorter)
	register.Function1x1(formatSorted)
	register.Function1x1(formatStrings)
	register.Function1x1(firstLetter)
	register.Function1x1(formatFloat)
	register.Function1x1(big)
	register.Function1x1(nested)
	register.Function1x2(byRecord)
	register.Function2x1(formatRecords)
	register.Function1x2(byCelsius)
	register.Function2x1(formatCelsius)
	register.Function2x1(formatThree)
	register.Function4x1(formatJoinedThree)
	register.DoFn2x0[int, func(string)](&livedFn{})
	register.Function1x1(option)
	register.Function2x1(formatNumber)
	register.Combiner2[string, int](&longestFn{})
	register.Function2x1(formatInItsWindow)
	register.Function4x1(lookAtPairs)
	register.Iter1[record]()
	register.Iter1[celsius]()
	register.Iter2[int, int]()
	beam.RegisterType(reflect.TypeOf(record{}))
	beam.RegisterCoder(reflect.TypeOf(celsius(0)), encodeCelsius, decodeCelsius)
}

func restOfThree(x int) int { return x % 3 }

func spread(x int, a, b, c, d, e, f, g, h func(int)) {
	[]func(int){a, b, c, d, e, f, g, h}[x%8](x)
}

// Partitions, a ParDo with more outputs than have a function of their own, and the small transforms of the SDK.
func partitions(s beam.Scope) {
	some := numbers(s, 20)
	for n, part := range beam.Partition(s, 3, restOfThree, some) {
		collect(s, fmt.Sprint("rest", n), beam.ParDo(s, number, part))
	}
	for n, part := range beam.ParDoN(s, spread, some) {
		collect(s, fmt.Sprint("output", n), beam.ParDo(s, number, part))
	}
	pairs := beam.ParDo(s, byParity, some)
	collect(s, "keys", beam.ParDo(s, number, beam.DropValue(s, pairs)))
	collect(s, "values", beam.ParDo(s, number, beam.DropKey(s, pairs)))
	collect(s, "swapped", beam.ParDo(s, formatNumbers, beam.GroupByKey(s, beam.SwapKV(s, pairs))))
	collect(s, "fixed", beam.ParDo(s, formatNumbers, beam.GroupByKey(s, beam.AddFixedKey(s, some))))
	lists := beam.Create(s, []string{"a", "b"}, []string{}, []string{"c"})
	collect(s, "exploded", beam.Explode(s, lists))
	collect(s, "nothing", beam.ParDo(s, number, beam.CreateList(s, []int{})))
	collect(s, "again", beam.ParDo(s, formatNumbers, beam.GroupByKey(s, beam.Reshuffle(s, pairs))))
}

func isEven(x int) bool          { return x%2 == 0 }
func lessThan(a, b int) bool     { return a < b }
func isShorter(a, b string) bool { return len(a) < len(b) }
func formatFloat(x float64) string {
	return fmt.Sprintf("%.3f", x)
}
func formatNumber(k int, x int) string { return fmt.Sprint(k, ": ", x) }
func formatSorted(list []int) string {
	sort.Ints(list)
	return fmt.Sprint(list)
}
func formatStrings(list []string) string {
	sort.Strings(list)
	return fmt.Sprint(list)
}
func firstLetter(x string) string { return x[:1] }

func formatThree(k int, list []int) string { return fmt.Sprint(k, " ", formatSorted(list)) }

// The transforms of the SDK's packages filter, stats and top.
func statistics(s beam.Scope) {
	some := numbers(s, 30)
	pairs := beam.ParDo(s, byParity, some)
	collect(s, "even", beam.ParDo(s, number, filter.Include(s, some, isEven)))
	collect(s, "odd", beam.ParDo(s, number, filter.Exclude(s, some, isEven)))
	collect(s, "distinct", beam.ParDo(s, number, filter.Distinct(s, beam.ParDo(s, half, some))))
	for name, made := range map[string]beam.PCollection{
		"count": stats.CountElms(s, some), "min": stats.Min(s, some), "max": stats.Max(s, some),
	} {
		collect(s, name, beam.ParDo(s, number, made))
	}
	collect(s, "mean", beam.ParDo(s, formatFloat, stats.Mean(s, some)))
	collect(s, "means", beam.ParDo(s, formatMean, stats.MeanPerKey(s, pairs)))
	for name, of := range map[string]func(beam.Scope, beam.PCollection) beam.PCollection{
		"minima": stats.MinPerKey, "maxima": stats.MaxPerKey, "sums": stats.SumPerKey,
	} {
		collect(s, name, beam.ParDo(s, formatNumber, of(s, pairs)))
	}
	quantiles := stats.ApproximateQuantiles(s, some, lessThan, stats.Opts{K: 200, NumQuantiles: 3})
	collect(s, "quantiles", beam.ParDo(s, formatSorted, quantiles))
	collect(s, "largest", beam.ParDo(s, formatSorted, top.Largest(s, some, 3, lessThan)))
	collect(s, "largestbykey", beam.ParDo(s, formatThree, top.LargestPerKey(s, pairs, 3, lessThan)))
	collect(s, "smallestbykey", beam.ParDo(s, formatThree, top.SmallestPerKey(s, pairs, 3, lessThan)))
	words := beam.Create(s, "a", "bb", "ccc", "dddd")
	collect(s, "shortest", beam.ParDo(s, formatStrings, top.Smallest(s, words, 2, isShorter)))
}

// record has a row's coder: fields of all kinds.
type record struct {
	Name   string
	Flag   bool
	Small  int8
	Big    int64
	Real   float64
	Single float32
	Data   []byte
	Tags   []string
	Counts map[string]int64
	Inner  Point
	Maybe  *string
}

func big(x int) int64 { return int64(x) << 40 }

func nested(x int) record {
	made := record{
		Name: fmt.Sprint("naïve", x), Flag: x%2 == 0, Small: int8(-x), Big: big(x), Real: float64(x) / 3,
		Single: float32(x) / 4, Data: []byte{0, byte(x), 255}, Tags: []string{"a", ""},
		Counts: map[string]int64{"x": int64(x)}, Inner: Point{x, -x},
	}
	if x%3 == 0 {
		made.Maybe = &made.Name
	}
	return made
}

func byRecord(x record) (Point, record) { return Point{x.Inner.X % 2, 0}, x }

func formatRecords(k Point, values func(*record) bool) string {
	var lines []string
	for _, each := range all(values) {
		maybe := "-"
		if each.Maybe != nil {
			maybe = *each.Maybe
		}
		each.Maybe = nil
		lines = append(lines, fmt.Sprintf("%v %s", each, maybe))
	}
	sort.Strings(lines)
	return fmt.Sprint(k, lines)
}

// celsius has a coder that this program registers.
type celsius float64

func encodeCelsius(x celsius) []byte { return binary.BigEndian.AppendUint32(nil, uint32(100*(x+300))) }
func decodeCelsius(data []byte) (celsius, error) {
	if len(data) != 4 {
		return 0, fmt.Errorf("%d bytes", len(data))
	}
	return celsius(binary.BigEndian.Uint32(data))/100 - 300, nil
}

func byCelsius(x int) (celsius, celsius) { return celsius(x%3) / 2, celsius(x) / 4 }

func formatCelsius(k celsius, values func(*celsius) bool) string {
	var found []string
	for _, each := range all(values) {
		found = append(found, fmt.Sprintf("%.2f", each))
	}
	sort.Strings(found)
	return fmt.Sprintf("%.2f %v", k, found)
}

// Rows, and a type with a coder of this program.
func ownCoders(s beam.Scope) {
	records := beam.ParDo(s, byRecord, beam.Reshuffle(s, beam.ParDo(s, nested, numbers(s, 7))))
	collect(s, "records", beam.ParDo(s, formatRecords, beam.GroupByKey(s, records)))
	degrees := beam.ParDo(s, byCelsius, numbers(s, 10))
	collect(s, "degrees", beam.ParDo(s, formatCelsius, beam.GroupByKey(s, degrees)))
}

// livedFn puts out what its methods have counted. How many bundles there are is the runner's choice.
type livedFn struct {
	setups, bundle, sum int
}

func (f *livedFn) Setup()                         { f.setups++ }
func (f *livedFn) StartBundle(emit func(string))  { f.bundle, f.sum = f.bundle+1, 0 }
func (f *livedFn) Teardown()                      { f.setups = 0 }
func (f *livedFn) FinishBundle(emit func(string)) { emit(fmt.Sprint("sum ", f.sum)) }
func (f *livedFn) ProcessElement(x int, emit func(string)) {
	if f.setups != 1 || f.bundle < 1 {
		panic("it was not set up")
	}
	f.sum += x
	emit(fmt.Sprint("element ", x))
}

// A DoFn that emits at the end of its bundle. It has all elements of a list in one.
func lifecycle(s beam.Scope) {
	collect(s, "lived", beam.ParDo(s, &livedFn{}, numbers(s, 10)))
}

func option(name string) string { return fmt.Sprint(name, "=", beam.PipelineOptions.Get(name)) }

// Pipeline options that user code reads.
func givenOptions(s beam.Scope) {
	beam.PipelineOptions.Set("colour", "naïve blue")
	collect(s, "options", beam.ParDo(s, option, beam.Create(s, "colour", "none")))
}

// The SDK's sink of text files.
func writing(s beam.Scope) {
	textio.Write(s, filepath.Join(*output, "written"), beam.ParDo(s, number, numbers(s, 30)))
}

// longestFn combines without a method that adds an input.
type longestFn struct{}

func (*longestFn) MergeAccumulators(a, b string) string {
	if len(a) > len(b) || len(a) == len(b) && a < b {
		return a
	}
	return b
}
func (*longestFn) ExtractOutput(a string) int { return len(a) }

func formatInItsWindow(w beam.Window, x int) string { return fmt.Sprint(w, " ", x) }

func formatJoinedThree(k int, a, b func(*int) bool, c func(*string) bool) string {
	return fmt.Sprint(formatNumbers(k, a), formatNumbers(k, b), len(all(c)))
}

// Combiners with and without windows, a global one of nothing, and a join of three.
func combining(s beam.Scope) {
	words := beam.ParDo(s, split, beam.Create(s, text, "and something else"))
	collect(s, "longest", beam.ParDo(s, number, beam.Combine(s, &longestFn{}, words)))
	some := beam.ParDo(s, stamped, beam.Create(s, 1, 2, 3, 11, 12, 35))
	for name, fn := range map[string]*window.Fn{
		"fixed": window.NewFixedWindows(10 * time.Second), "sessions": window.NewSessions(5 * time.Second),
		"sliding": window.NewSlidingWindows(5*time.Second, 10*time.Second),
	} {
		sums := stats.Sum(s, beam.WindowInto(s, fn, some))
		collect(s, name, beam.ParDo(s, formatInItsWindow, sums))
	}
	collect(s, "none", beam.ParDo(s, number, stats.Sum(s, beam.CreateList(s, []int{}))))
	pairs := beam.ParDo(s, byParity, numbers(s, 6))
	joined := beam.CoGroupByKey(s, pairs, beam.SwapKV(s, beam.ParDo(s, byParity, numbers(s, 3))),
		beam.ParDo(s, bySize, numbers(s, 4)))
	collect(s, "joined", beam.ParDo(s, formatJoinedThree, joined))
}

func lookAtPairs(
	ctx context.Context, x int, pairs func(*int, *int) bool, again func() func(*int, *int) bool,
) string {
	var k, v, sum, products int
	for pairs(&k, &v) {
		sum += v
	}
	for range 2 {
		for each := again(); each(&k, &v); {
			products += k * v
		}
	}
	return strings.Join([]string{fmt.Sprint(x), fmt.Sprint(sum), fmt.Sprint(products)}, " ")
}

// Side inputs of pairs, of nothing, and one that is empty.
func moreSides(s beam.Scope) {
	some := numbers(s, 4)
	pairs := beam.ParDo(s, byParity, numbers(s, 9))
	looked := beam.ParDo(s, lookAtPairs, some, beam.SideInput{Input: pairs}, beam.SideInput{Input: pairs})
	collect(s, "pairs", looked)
	none := beam.ParDo(s, byParity, beam.CreateList(s, []int{}))
	collect(s, "none", beam.ParDo(s, lookAtPairs, some, beam.SideInput{Input: none}, beam.SideInput{Input: none}))
	missing := beam.ParDo(s, pair, beam.CreateList(s, []int{}))
	collect(s, "missing", beam.ParDo(s, lookUp, some, beam.SideInput{Input: missing}))
}
