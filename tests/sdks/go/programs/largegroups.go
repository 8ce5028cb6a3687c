package main

import (
	"flag"
	"fmt"
	"strings"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/transforms/stats"
)

var elements = flag.Int("elements", 1000, "Elements of the program largegroups.")

func init() {
	programs["largegroups"] = largeGroups
	programs["pagedgroups"] = pagedGroups
	register.DoFn2x0[int, func(int)](&rangeFn{})
	register.Function1x2(byHash)
	register.Function2x1(sumGroup)
	register.Function1x1(formatSum)
	register.Function1x2(longText)
	register.Function2x1(measured)
	register.Iter1[int]()
	register.Emitter1[int]()
}

const (
	rangesOfGroups = 8
	keysOfGroups   = 100_000
)

// rangeFn emits its part of the numbers.
type rangeFn struct{ Elements int }

func (f *rangeFn) ProcessElement(part int, emit func(int)) {
	for n := f.Elements * part / rangesOfGroups; n < f.Elements*(part+1)/rangesOfGroups; n++ {
		emit(n)
	}
}

func byHash(n int) (int, int) { return int(uint32(n)*2654435761) % keysOfGroups, n }

func sumGroup(key int, values func(*int) bool) int {
	var value, sum int
	for values(&value) {
		sum += value
	}
	return (key*31 + sum) % 10_007
}

func formatSum(sum int) string { return fmt.Sprint(sum) }

// Numbers by key, for benchmarks: what is collected is one checksum.
func largeGroups(s beam.Scope) {
	parts := beam.Reshuffle(s, beam.CreateList(s, []int{0, 1, 2, 3, 4, 5, 6, 7}))
	pairs := beam.ParDo(s, byHash, beam.ParDo(s, &rangeFn{Elements: *elements}, parts))
	sums := beam.ParDo(s, sumGroup, beam.GroupByKey(s, pairs))
	collect(s, "sum", beam.ParDo(s, formatSum, stats.Sum(s, sums)))
}

func longText(n int) (string, string) {
	if n%10 == 9 {
		return "small", fmt.Sprint(n)
	}
	return "large", strings.Repeat(fmt.Sprint(n%9), 100_000+n)
}

func measured(key string, values func(*string) bool) string {
	var value string
	count, size, digits := 0, 0, 0
	for ; values(&value); count++ {
		size += len(value)
		digits += int(value[0] - '0')
	}
	return fmt.Sprint(key, " ", count, " ", size, " ", digits)
}

// A group of 5 MB, which a runner need not send as a whole, and a small one.
func pagedGroups(s beam.Scope) {
	collect(s, "groups", beam.ParDo(s, measured, beam.GroupByKey(s, beam.ParDo(s, longText, numbers(s, 60)))))
}
