package main

import (
	"context"
	"io"
	"os"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/runtime/graphx"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/runners/universal/extworker"
	"google.golang.org/protobuf/proto"
)

func init() {
	programs["served"] = countWords
	register.Function1x2(paired)
	register.Function2x1(formatPaired)
}

func paired(word string) (string, int) { return word, 1 }

func formatPaired(word string, values func(*int) bool) string {
	return formatCount(word, len(all(values)))
}

// Counts words. Pipelines of other SDKs use the part "Crossing". It has no combiner, whose payload names coders.
func countWords(s beam.Scope) {
	lines, part := beam.Create(s, text), s.Scope("Crossing")
	words := beam.ParDo(part, paired, beam.ParDo(part, split, lines))
	beam.ParDo(part, formatPaired, beam.GroupByKey(part, words))
}

// served writes the proto of a pipeline to a file, and starts its workers on request until the standard input ends.
func served(p *beam.Pipeline, file string) error {
	ctx := context.Background()
	workers, err := extworker.StartLoopback(ctx, 0)
	if err != nil {
		return err
	}
	defer workers.Stop(ctx)
	edges, _, err := p.Build()
	if err != nil {
		return err
	}
	environment, err := graphx.CreateEnvironment(ctx, graphx.URNEnvExternal, workers.EnvironmentConfig)
	if err != nil {
		return err
	}
	environment.Dependencies = nil
	pipeline, err := graphx.Marshal(edges, &graphx.Options{Environment: environment})
	if err != nil {
		return err
	}
	data, err := proto.Marshal(pipeline)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".part", data, 0o644); err != nil {
		return err
	}
	if err := os.Rename(file+".part", file); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
