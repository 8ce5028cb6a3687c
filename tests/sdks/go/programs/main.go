// Programs with the Go SDK that are run by arcbeam and by Prism, whose results are then compared.
//
// One binary has all of them: --program names one. What a program collects is appended to files in --output, one
// element a line. So results are the same wherever its worker runs.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sort"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/metrics"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/x/beamx"
)

var (
	program = flag.String("program", "", "The program to run.")
	output  = flag.String("output", "", "Folder for what it collects.")
	serve   = flag.String("serve", "", "File for the program's proto. Do not run it; start its workers on request.")
)

var programs = map[string]func(beam.Scope){}

func init() {
	register.DoFn1x1[string, error](&collectFn{})
	register.Function1x1(quoted)
}

// collectFn appends each element to a file.
type collectFn struct{ File string }

func (f *collectFn) ProcessElement(line string) error {
	file, err := os.OpenFile(f.File, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteString(line + "\n")
	return err
}

func quoted(line string) string { return fmt.Sprintf("%q", line) }

// collect writes lines to the file with this name.
func collect(s beam.Scope, name string, lines beam.PCollection) {
	beam.ParDo0(s.Scope("Collect "+name), &collectFn{File: filepath.Join(*output, name)}, lines)
}

// report writes the user's metrics as JSON's lines, sorted.
func report(results metrics.Results) error {
	var lines []string
	add := func(name string, key metrics.StepKey, value any) {
		line, err := json.Marshal(map[string]any{"name": name, "step": key.Step, "value": value})
		if err == nil {
			lines = append(lines, string(line))
		}
	}
	all := results.AllMetrics()
	for _, c := range all.Counters() {
		add(c.Key.Name, c.Key, c.Result())
	}
	for _, d := range all.Distributions() {
		v := d.Result()
		add(d.Key.Name, d.Key, []int64{v.Count, v.Sum, v.Min, v.Max})
	}
	for _, g := range all.Gauges() {
		add(g.Key.Name, g.Key, g.Result().Value)
	}
	sort.Strings(lines)
	file, err := os.Create(filepath.Join(*output, "metrics"))
	if err != nil {
		return err
	}
	defer file.Close()
	for _, line := range lines {
		fmt.Fprintln(file, line)
	}
	return nil
}

func main() {
	flag.Parse()
	beam.Init()
	make, ok := programs[*program]
	if !ok {
		log.Fatalf("there is no program %q", *program)
	}
	p, s := beam.NewPipelineWithRoot()
	make(s)
	if *serve != "" {
		if err := served(p, *serve); err != nil {
			log.Fatal(err)
		}
		return
	}
	results, err := beamx.RunWithMetrics(context.Background(), p)
	if err != nil {
		log.Fatal(err)
	}
	if err := report(results.Metrics()); err != nil {
		log.Fatal(err)
	}
}
