package main

import (
	"fmt"
	"os"
	"time"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"
)

func init() {
	programs["exiting"] = exiting
	programs["crashing"] = crashing
	programs["unregistered"] = unregistered
	register.Function1x1(exit)
	register.Function1x1(crash)
	// Only workers have the variable.
	switch os.Getenv("ARCBEAM_TEST") {
	case "panic":
		panic("no configuration")
	case "":
		register.DoFn1x1[int, string](&unknownFn{})
	}
}

func exit(x int) string {
	fmt.Fprintln(os.Stderr, "leaving without a reason")
	os.Exit(3)
	return ""
}

func crash(x int) string {
	go func() { panic("no harness recovers this") }()
	time.Sleep(time.Minute)
	return ""
}

// A DoFn that ends its process.
func exiting(s beam.Scope) {
	collect(s, "numbers", beam.ParDo(s.Scope("Wrong"), exit, numbers(s, 5)))
}

// A DoFn with a goroutine that panics.
func crashing(s beam.Scope) {
	collect(s, "numbers", beam.ParDo(s.Scope("Wrong"), crash, numbers(s, 5)))
}

type unknownFn struct{ Prefix string }

func (f *unknownFn) ProcessElement(x int) string { return fmt.Sprint(f.Prefix, x) }

// A DoFn whose type the worker does not know.
func unregistered(s beam.Scope) {
	collect(s, "numbers", beam.ParDo(s.Scope("Wrong"), &unknownFn{Prefix: "n"}, numbers(s, 5)))
}
