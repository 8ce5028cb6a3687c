package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/transforms/stats"
)

func init() {
	programs["wordcount"] = wordcount
	programs["grouping"] = grouping
	programs["sides"] = sides
	programs["metrics"] = countedElements
	programs["failing"] = failing
	programs["panicking"] = panicking
	programs["dying"] = dying
	register.Function2x0(split)
	register.Function2x1(formatCount)
	register.Function1x2(byParity)
	register.Function1x2(bySize)
	register.Function2x1(formatNumbers)
	register.Function3x1(formatJoined)
	register.Function1x1(half)
	register.Function4x0(parts)
	register.Emitter1[int]()
	register.Function1x1(number)
	register.Function1x1(large)
	register.Combiner3[mean, int, float64](&meanFn{})
	register.Function2x1(formatMean)
	register.Function2x1(formatPoints)
	register.Function1x2(point)
	register.Function5x1(look)
	register.Function2x1(lookUp)
	register.Function1x2(pair)
	register.Function2x1(count)
	register.Function2x2(fail)
	register.Function1x1(failFast)
	register.DoFn1x1[int, string](&dieFn{})
	register.Emitter1[string]()
	register.Iter1[int]()
	register.Iter1[Point]()
	register.Iter1[string]()
}

const text = "the quick brown fox jumps over the lazy dog the fox naïve\x00 "

func split(line string, emit func(string)) {
	for _, word := range strings.Fields(line) {
		emit(word)
	}
}

func formatCount(word string, n int) string { return fmt.Sprintf("%q: %d", word, n) }

// A ParDo, and a combiner that the runner lifts.
func wordcount(s beam.Scope) {
	lines := beam.Create(s, text, text, "fox")
	counted := stats.Count(s, beam.ParDo(s, split, lines))
	collect(s, "counts", beam.ParDo(s, formatCount, counted))
}

// Point is a value with a coder of the SDK's own.
type Point struct{ X, Y int }

func point(x int) (Point, Point) { return Point{x % 2, x % 3}, Point{x, -x} }
func byParity(x int) (int, int)  { return x % 2, x }
func bySize(x int) (int, string) { return x % 2, strings.Repeat("x", x%4) }
func half(x int) int             { return x / 2 }
func parts(x int, one, minus, square func(int)) {
	one(x)
	minus(-x)
	square(x * x)
}
func number(x int) string                { return fmt.Sprint(x) }
func large(x int) string                 { return strings.Repeat(fmt.Sprint(x%10), 300_000) }
func formatMean(k int, m float64) string { return fmt.Sprintf("%d: %.3f", k, m) }

func all[T any](values func(*T) bool) (found []T) {
	var value T
	for values(&value) {
		found = append(found, value)
	}
	return found
}

func formatNumbers(k int, values func(*int) bool) string {
	found := all(values)
	sort.Ints(found)
	return fmt.Sprint(k, found)
}

func formatPoints(k Point, values func(*Point) bool) string {
	found := all(values)
	sort.Slice(found, func(i, j int) bool { return found[i].X < found[j].X })
	return fmt.Sprint(k, found)
}

func formatJoined(k int, numbers func(*int) bool, names func(*string) bool) string {
	n, s := all(numbers), all(names)
	sort.Ints(n)
	sort.Strings(s)
	return fmt.Sprint(k, n, s)
}

type mean struct {
	Sum, Count int
}

type meanFn struct{}

func (*meanFn) CreateAccumulator() mean          { return mean{} }
func (*meanFn) AddInput(a mean, x int) mean      { return mean{a.Sum + x, a.Count + 1} }
func (*meanFn) MergeAccumulators(a, b mean) mean { return mean{a.Sum + b.Sum, a.Count + b.Count} }
func (*meanFn) ExtractOutput(a mean) float64     { return float64(a.Sum) / float64(a.Count) }

func numbers(s beam.Scope, n int) beam.PCollection {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return beam.CreateList(s, list)
}

// Groups of keys and values with standard and own coders; joins; Flatten; Reshuffle; several outputs; an average.
func grouping(s beam.Scope) {
	some := numbers(s, 40)
	byKey := beam.ParDo(s, byParity, some)
	collect(s, "groups", beam.ParDo(s, formatNumbers, beam.GroupByKey(s, byKey)))
	collect(s, "points", beam.ParDo(s, formatPoints, beam.GroupByKey(s, beam.ParDo(s, point, some))))
	joined := beam.CoGroupByKey(s, byKey, beam.ParDo(s, bySize, some))
	collect(s, "joined", beam.ParDo(s, formatJoined, joined))
	one, minus, square := beam.ParDo3(s, parts, some)
	collect(s, "flat", beam.ParDo(s, number, beam.Reshuffle(s, beam.Flatten(s, one, minus, square))))
	collect(s, "means", beam.ParDo(s, formatMean, beam.CombinePerKey(s, &meanFn{}, byKey)))
	collect(s, "sum", beam.ParDo(s, number, stats.Sum(s, beam.ParDo(s, half, some))))
}

func look(x int, iter func(*int) bool, list []int, one string, again func() func(*int) bool) string {
	first, second := all(again()), all(again())
	sum := 0
	for _, each := range append(first, second...) {
		sum += each
	}
	return fmt.Sprint(x, len(all(iter)), len(list), len(one), sum)
}

func pair(x int) (int, Point) { return x % 5, Point{x, x} }

func lookUp(x int, of func(int) func(*Point) bool) string {
	found := all(of(x))
	sort.Slice(found, func(i, j int) bool { return found[i].X < found[j].X })
	return fmt.Sprint(x, found)
}

// All kinds of side inputs: an iterator, a list, one value, an iterator that begins again, a multimap.
func sides(s beam.Scope) {
	some := numbers(s, 12)
	iter, list, again := beam.ParDo(s, half, some), beam.Flatten(s, some, some), numbers(s, 7)
	one := beam.ParDo(s, large, beam.Create(s, 3))
	looked := beam.ParDo(s, look, some,
		beam.SideInput{Input: iter}, beam.SideInput{Input: list}, beam.SideInput{Input: one},
		beam.SideInput{Input: again})
	collect(s, "looked", looked)
	pairs := beam.ParDo(s, pair, numbers(s, 15))
	collect(s, "found", beam.ParDo(s, lookUp, some, beam.SideInput{Input: pairs}))
}

var (
	seen  = beam.NewCounter("go", "seen")
	sizes = beam.NewDistribution("go", "sizes")
	last  = beam.NewGauge("go", "last")
)

func count(ctx context.Context, x int) string {
	seen.Inc(ctx, 1)
	sizes.Update(ctx, int64(x))
	if x == 4 {
		last.Set(ctx, 4)
	}
	return fmt.Sprint(x)
}

// User metrics of each kind.
func countedElements(s beam.Scope) {
	collect(s, "numbers", beam.ParDo(s, count, numbers(s, 10)))
}

func fail(ctx context.Context, x int) (string, error) {
	if x == 3 {
		return "", errors.New("no three")
	}
	return fmt.Sprint(x), nil
}

// A DoFn that fails.
func failing(s beam.Scope) {
	collect(s, "numbers", beam.ParDo(s.Scope("Wrong"), fail, numbers(s, 5)))
}

func failFast(x int) string {
	if x == 3 {
		panic("no three")
	}
	return fmt.Sprint(x)
}

// A DoFn that panics.
func panicking(s beam.Scope) {
	collect(s, "numbers", beam.ParDo(s.Scope("Wrong"), failFast, numbers(s, 5)))
}

// dieFn kills its process, the first time.
type dieFn struct{ Died string }

func (f *dieFn) ProcessElement(x int) string {
	if _, err := os.Stat(f.Died); err != nil && x == 5 {
		if err := os.WriteFile(f.Died, nil, 0o644); err != nil {
			panic(err)
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			panic(err)
		}
	}
	return fmt.Sprint(x)
}

// A worker that is killed. What it has written before would be written again, so elements are collected later.
func dying(s beam.Scope) {
	lived := beam.ParDo(s, &dieFn{filepath.Join(*output, "died")}, numbers(s, 10))
	collect(s, "numbers", beam.Reshuffle(s, lived))
}
