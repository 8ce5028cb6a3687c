import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Consumer;
import org.apache.beam.sdk.Pipeline;
import org.apache.beam.sdk.PipelineResult;
import org.apache.beam.sdk.coders.Coder;
import org.apache.beam.sdk.coders.CoderRegistry;
import org.apache.beam.sdk.coders.CustomCoder;
import org.apache.beam.sdk.coders.KvCoder;
import org.apache.beam.sdk.coders.RowCoder;
import org.apache.beam.sdk.coders.SerializableCoder;
import org.apache.beam.sdk.coders.StringUtf8Coder;
import org.apache.beam.sdk.coders.VarIntCoder;
import org.apache.beam.sdk.coders.VarLongCoder;
import org.apache.beam.sdk.io.GenerateSequence;
import org.apache.beam.sdk.io.Read;
import org.apache.beam.sdk.io.TextIO;
import org.apache.beam.sdk.io.UnboundedSource;
import org.apache.beam.sdk.io.range.OffsetRange;
import org.apache.beam.sdk.metrics.Counter;
import org.apache.beam.sdk.metrics.Distribution;
import org.apache.beam.sdk.metrics.Gauge;
import org.apache.beam.sdk.metrics.MetricNameFilter;
import org.apache.beam.sdk.metrics.MetricQueryResults;
import org.apache.beam.sdk.metrics.Metrics;
import org.apache.beam.sdk.metrics.MetricsFilter;
import org.apache.beam.sdk.options.PipelineOptions;
import org.apache.beam.sdk.options.PipelineOptionsFactory;
import org.apache.beam.sdk.schemas.Schema;
import org.apache.beam.sdk.state.BagState;
import org.apache.beam.sdk.state.CombiningState;
import org.apache.beam.sdk.state.MapState;
import org.apache.beam.sdk.state.MultimapState;
import org.apache.beam.sdk.state.OrderedListState;
import org.apache.beam.sdk.state.SetState;
import org.apache.beam.sdk.state.StateSpec;
import org.apache.beam.sdk.state.StateSpecs;
import org.apache.beam.sdk.state.TimeDomain;
import org.apache.beam.sdk.state.Timer;
import org.apache.beam.sdk.state.TimerMap;
import org.apache.beam.sdk.state.TimerSpec;
import org.apache.beam.sdk.state.TimerSpecs;
import org.apache.beam.sdk.state.ValueState;
import org.apache.beam.sdk.testing.TestStream;
import org.apache.beam.sdk.transforms.Combine;
import org.apache.beam.sdk.transforms.Count;
import org.apache.beam.sdk.transforms.Create;
import org.apache.beam.sdk.transforms.Distinct;
import org.apache.beam.sdk.transforms.DoFn;
import org.apache.beam.sdk.transforms.FlatMapElements;
import org.apache.beam.sdk.transforms.Flatten;
import org.apache.beam.sdk.transforms.GroupByKey;
import org.apache.beam.sdk.transforms.MapElements;
import org.apache.beam.sdk.transforms.Mean;
import org.apache.beam.sdk.transforms.ParDo;
import org.apache.beam.sdk.transforms.PeriodicImpulse;
import org.apache.beam.sdk.transforms.Reshuffle;
import org.apache.beam.sdk.transforms.SerializableFunction;
import org.apache.beam.sdk.transforms.SimpleFunction;
import org.apache.beam.sdk.transforms.Sum;
import org.apache.beam.sdk.transforms.Values;
import org.apache.beam.sdk.transforms.View;
import org.apache.beam.sdk.transforms.WithKeys;
import org.apache.beam.sdk.transforms.splittabledofn.RestrictionTracker;
import org.apache.beam.sdk.transforms.windowing.AfterPane;
import org.apache.beam.sdk.transforms.windowing.AfterWatermark;
import org.apache.beam.sdk.transforms.windowing.BoundedWindow;
import org.apache.beam.sdk.transforms.windowing.FixedWindows;
import org.apache.beam.sdk.transforms.windowing.IntervalWindow;
import org.apache.beam.sdk.transforms.windowing.NonMergingWindowFn;
import org.apache.beam.sdk.transforms.windowing.PaneInfo;
import org.apache.beam.sdk.transforms.windowing.Sessions;
import org.apache.beam.sdk.transforms.windowing.SlidingWindows;
import org.apache.beam.sdk.transforms.windowing.Window;
import org.apache.beam.sdk.transforms.windowing.WindowFn;
import org.apache.beam.sdk.transforms.windowing.WindowMappingFn;
import org.apache.beam.sdk.values.KV;
import org.apache.beam.sdk.values.PCollection;
import org.apache.beam.sdk.values.PCollectionList;
import org.apache.beam.sdk.values.PCollectionTuple;
import org.apache.beam.sdk.values.PCollectionView;
import org.apache.beam.sdk.values.Row;
import org.apache.beam.sdk.values.TimestampedValue;
import org.apache.beam.sdk.values.TupleTag;
import org.apache.beam.sdk.values.TupleTagList;
import org.apache.beam.sdk.values.TypeDescriptors;
import org.joda.time.Duration;
import org.joda.time.Instant;

/**
 * Programs with the Java SDK: --program names one. What a program collects is appended to files in --output, one
 * element a line.
 */
public final class Programs {
  public interface Options extends PipelineOptions {
    String getProgram();

    void setProgram(String value);

    String getOutput();

    void setOutput(String value);

    String getInput();

    void setInput(String value);

    String getCheckpointDir();

    void setCheckpointDir(String value);
  }

  private static final Map<String, Consumer<Pipeline>> PROGRAMS = new TreeMap<>();

  static {
    PROGRAMS.put("wordcount", Programs::wordCount);
    PROGRAMS.put("grouping", Programs::grouping);
    PROGRAMS.put("combining", Programs::combining);
    PROGRAMS.put("sides", Programs::sides);
    PROGRAMS.put("outputs", Programs::outputs);
    PROGRAMS.put("windows", Programs::windows);
    PROGRAMS.put("triggers", Programs::triggers);
    PROGRAMS.put("state", Programs::states);
    PROGRAMS.put("timers", Programs::timers);
    PROGRAMS.put("reading", Programs::reading);
    PROGRAMS.put("periodic", Programs::periodic);
    PROGRAMS.put("splitting", Programs::splitting);
    PROGRAMS.put("coders", Programs::coders);
    PROGRAMS.put("finalizing", Programs::finalizing);
    PROGRAMS.put("failing", Programs::failing);
    PROGRAMS.put("metrics", Programs::metrics);
    PROGRAMS.put("merging", Programs::merging);
    PROGRAMS.put("owncoders", Programs::ownCoders);
    PROGRAMS.put("entries", Programs::entries);
    PROGRAMS.put("ownwindows", Programs::ownWindows);
    PROGRAMS.put("ownsidewindows", Programs::ownSideWindows);
    PROGRAMS.put("source", Programs::source);
    PROGRAMS.put("endless", Programs::endless);
  }

  public static void main(String[] args) throws IOException {
    PipelineOptionsFactory.register(Options.class);
    Options options = PipelineOptionsFactory.fromArgs(args).withValidation().as(Options.class);
    Pipeline pipeline = Pipeline.create(options);
    PROGRAMS.get(options.getProgram()).accept(pipeline);
    PipelineResult result = pipeline.run();
    PipelineResult.State state = result.waitUntilFinish();
    MetricsFilter ours = MetricsFilter.builder().addNameFilter(MetricNameFilter.inNamespace("programs")).build();
    MetricQueryResults found = result.metrics().queryMetrics(ours);
    Set<String> metrics = new TreeSet<>(); // the SDK has each one twice: attempted, and committed
    found.getCounters().forEach(each -> metrics.add(each.getName().getName() + " " + each.getAttempted()));
    found.getDistributions().forEach(each -> metrics.add(each.getName().getName() + " " + each.getAttempted()));
    found.getGauges().forEach(each -> metrics.add(each.getName().getName() + " " + each.getAttempted().getValue()));
    metrics.forEach(each -> append(Path.of(options.getOutput(), "metrics"), each));
    System.exit(state == PipelineResult.State.DONE ? 0 : 1);
  }

  private static synchronized void append(Path file, String line) {
    try {
      Files.writeString(file, line + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private static class CollectFn extends DoFn<String, Void> {
    private final String file;

    CollectFn(String file) {
      this.file = file;
    }

    @ProcessElement
    public void process(@Element String line) {
      append(Path.of(file), line);
    }
  }

  private static String output(Pipeline p) {
    return p.getOptions().as(Options.class).getOutput();
  }

  /** Write lines to the file with this name. */
  private static void collect(String name, PCollection<String> lines) {
    lines.apply("Collect " + name, ParDo.of(new CollectFn(output(lines.getPipeline()) + "/" + name)));
  }

  private static <T> void show(String name, PCollection<T> some) {
    collect(name, some.apply("Show " + name, text(Object::toString)));
  }

  private static <T> MapElements<T, String> text(SerializableFunction<T, String> of) {
    return MapElements.into(TypeDescriptors.strings()).via(of);
  }

  private static final String[] LINES = {"the king and the queen", "and the fool", "", "König"};

  private static void wordCount(Pipeline p) {
    p.apply(Create.of(Arrays.asList(LINES)))
        .apply("Write input", TextIO.write().to(output(p) + "/lines").withoutSharding());
    PCollection<KV<String, Long>> counts =
        p.apply("Lines", Create.of(Arrays.asList(LINES)))
            .apply(
                "Split",
                FlatMapElements.into(TypeDescriptors.strings()).via((String line) -> Arrays.asList(line.split(" +"))))
            .apply(
                "Words",
                ParDo.of(
                    new DoFn<String, String>() {
                      @ProcessElement
                      public void process(@Element String word, OutputReceiver<String> out) {
                        if (!word.isEmpty()) {
                          out.output(word);
                        }
                      }
                    }))
            .apply(Count.perElement());
    collect(
        "counts",
        counts.apply("Format", text(kv -> kv.getKey() + ": " + kv.getValue())));
  }

  private static String keyed(long x) {
    return x % 2 == 0 ? "even" : "odd";
  }

  private static <T> List<T> list(Iterable<T> values) {
    List<T> all = new ArrayList<>();
    values.forEach(all::add);
    return all;
  }

  private static <T extends Comparable<T>> List<T> sorted(Iterable<T> values) {
    List<T> all = list(values);
    Collections.sort(all);
    return all;
  }

  // A small group, and one of many megabytes that is read twice.
  private static void grouping(Pipeline p) {
    collect(
        "groups",
        p.apply("Few", Create.of(1L, 2L, 3L, 4L, 5L))
            .apply(WithKeys.of((Long x) -> keyed(x)).withKeyType(TypeDescriptors.strings()))
            .apply(GroupByKey.create())
            .apply(
                "Format",
                text(kv -> kv.getKey() + " " + sorted(kv.getValue()))));
    collect(
        "large",
        p.apply("Many", GenerateSequence.from(0).to(100_000))
            .apply(
                "Long texts",
                MapElements.into(TypeDescriptors.kvs(TypeDescriptors.strings(), TypeDescriptors.strings()))
                    .via(x -> KV.of("all", String.format("%0100d", x))))
            .apply("Group all", GroupByKey.create())
            .apply(
                "Read twice",
                ParDo.of(
                    new DoFn<KV<String, Iterable<String>>, String>() {
                      @ProcessElement
                      public void process(@Element KV<String, Iterable<String>> group, OutputReceiver<String> out) {
                        long count = 0;
                        long sum = 0;
                        for (String each : group.getValue()) {
                          count++;
                        }
                        for (String each : group.getValue()) {
                          sum += Long.parseLong(each);
                        }
                        out.output(group.getKey() + " " + count + " " + sum);
                      }
                    })));
  }

  /** A CombineFn with an accumulator whose coder only Java knows. */
  private static class JoinFn extends Combine.CombineFn<Long, TreeMap<Long, Integer>, String> {
    @Override
    public TreeMap<Long, Integer> createAccumulator() {
      return new TreeMap<>();
    }

    @Override
    public TreeMap<Long, Integer> addInput(TreeMap<Long, Integer> found, Long x) {
      found.merge(x, 1, Integer::sum);
      return found;
    }

    @Override
    public TreeMap<Long, Integer> mergeAccumulators(Iterable<TreeMap<Long, Integer>> all) {
      TreeMap<Long, Integer> merged = createAccumulator();
      all.forEach(each -> each.forEach((x, n) -> merged.merge(x, n, Integer::sum)));
      return merged;
    }

    @Override
    public String extractOutput(TreeMap<Long, Integer> found) {
      return found.toString();
    }

    @Override
    public Coder<TreeMap<Long, Integer>> getAccumulatorCoder(
        CoderRegistry registry, Coder<Long> input) {
      return SerializableCoder.of((Class<TreeMap<Long, Integer>>) (Class<?>) TreeMap.class);
    }
  }

  private static void combining(Pipeline p) {
    PCollection<Long> some = p.apply(Create.of(1L, 2L, 3L, 4L, 5L, 5L));
    PCollection<KV<String, Long>> pairs =
        some.apply(WithKeys.of((Long x) -> keyed(x)).withKeyType(TypeDescriptors.strings()));
    show("joined", some.apply(Combine.globally(new JoinFn())));
    show("joinedperkey", pairs.apply(Combine.perKey(new JoinFn())));
    show("sums", pairs.apply(Sum.longsPerKey()));
    show("fanout", pairs.apply(Combine.<String, Long, Long>perKey(Sum.ofLongs()).withHotKeyFanout(3)));
    show("mean", some.apply(Mean.globally()));
    show(
        "empty",
        p.apply("None", Create.empty(VarLongCoder.of())).apply("Sum of none", Sum.longsGlobally()));
  }

  private static void sides(Pipeline p) {
    PCollection<KV<String, Long>> pairs =
        p.apply("Pairs", Create.of(KV.of("a", 1L), KV.of("a", 2L), KV.of("b", 3L)));
    PCollection<Long> values = pairs.apply(Values.create());
    PCollectionView<Iterable<Long>> iterable = values.apply(View.asIterable());
    PCollectionView<List<Long>> list = values.apply(View.asList());
    PCollectionView<Long> single = values.apply(Sum.longsGlobally().asSingletonView());
    PCollectionView<Map<String, Iterable<Long>>> multimap = pairs.apply(View.asMultimap());
    PCollectionView<Map<String, Long>> map =
        pairs.apply(Sum.longsPerKey()).apply(View.asMap());
    collect(
        "sides",
        p.apply("Keys", Create.of("a", "b", "c"))
            .apply(
                "Look up",
                ParDo.of(
                        new DoFn<String, String>() {
                          @ProcessElement
                          public void process(ProcessContext c) {
                            String key = c.element();
                            Iterable<Long> many = c.sideInput(multimap).get(key);
                            c.output(
                                key
                                    + sorted(c.sideInput(iterable))
                                    + sorted(c.sideInput(list))
                                    + c.sideInput(list).size()
                                    + " "
                                    + c.sideInput(single)
                                    + " "
                                    + c.sideInput(map).get(key)
                                    + sorted(c.sideInput(map).keySet())
                                    + (many == null ? "none" : sorted(many))
                                    + sorted(c.sideInput(multimap).keySet()));
                          }
                        })
                    .withSideInputs(iterable, list, single, multimap, map)));
    // In windows.
    PCollectionView<Long> perWindow =
        stamped(p, "For view", 1, 2, 12)
            .apply("Side windows", Window.into(FixedWindows.of(Duration.standardSeconds(10))))
            .apply("Side sums", Combine.globally(Sum.ofLongs()).withoutDefaults().asSingletonView());
    collect(
        "windowed",
        stamped(p, "Main", 3, 4, 15)
            .apply("Main windows", Window.into(FixedWindows.of(Duration.standardSeconds(5))))
            .apply(
                "Look up in windows",
                ParDo.of(
                        new DoFn<Long, String>() {
                          @ProcessElement
                          public void process(ProcessContext c) {
                            c.output(c.element() + " " + c.sideInput(perWindow));
                          }
                        })
                    .withSideInputs(perWindow)));
  }

  private static void outputs(Pipeline p) {
    TupleTag<Long> even = new TupleTag<Long>() {};
    TupleTag<String> odd = new TupleTag<String>() {};
    PCollectionTuple both =
        p.apply(GenerateSequence.from(0).to(6))
            .apply(
                "Split",
                ParDo.of(
                        new DoFn<Long, Long>() {
                          @ProcessElement
                          public void process(@Element Long x, MultiOutputReceiver out) {
                            if (x % 2 == 0) {
                              out.get(even).output(x);
                            } else {
                              out.get(odd).output("odd " + x);
                            }
                          }
                        })
                    .withOutputTags(even, TupleTagList.of(odd)));
    show("even", both.get(even).apply(Reshuffle.viaRandomKey()));
    collect("odd", both.get(odd));
    PCollection<String> texts =
        both.get(even).apply("Texts", text(x -> "even " + x));
    collect(
        "flat",
        PCollectionList.of(texts).and(both.get(odd)).apply(Flatten.pCollections()).apply(Reshuffle.viaRandomKey()));
    collect(
        "distinct",
        p.apply("Twice", Create.of("a", "b", "a")).apply(Distinct.create()));
  }

  private static PCollection<Long> stamped(Pipeline p, String name, long... seconds) {
    List<TimestampedValue<Long>> all = new ArrayList<>();
    for (long each : seconds) {
      all.add(TimestampedValue.of(each, Instant.ofEpochSecond(each)));
    }
    return p.apply(name, Create.timestamped(all));
  }

  private static class FormatFn extends DoFn<KV<String, Iterable<Long>>, String> {
    @ProcessElement
    public void process(
        @Element KV<String, Iterable<Long>> group, BoundedWindow window, PaneInfo pane, OutputReceiver<String> out) {
      IntervalWindow w = (IntervalWindow) window;
      out.output(
          group.getKey() + sorted(group.getValue()) + " " + w.start().getMillis() / 1000 + ":"
              + w.end().getMillis() / 1000 + " " + pane.getTiming() + " " + pane.getIndex());
    }
  }

  private static void windows(Pipeline p) {
    PCollection<KV<String, Long>> some =
        stamped(p, "Some", 0, 1, 2, 3, 14, 17, 20, 21, 22, 40, 61)
            .apply(WithKeys.of((Long x) -> keyed(x)).withKeyType(TypeDescriptors.strings()));
    Map<String, WindowFn<Object, IntervalWindow>> all =
        Map.of(
            "fixed", FixedWindows.of(Duration.standardSeconds(10)),
            "sliding", SlidingWindows.of(Duration.standardSeconds(10)).every(Duration.standardSeconds(5)),
            "sessions", Sessions.withGapDuration(Duration.standardSeconds(5)));
    all.forEach(
        (name, fn) ->
            collect(
                name,
                some.apply("Into " + name, Window.into(fn))
                    .apply("Group " + name, GroupByKey.create())
                    .apply("Format " + name, ParDo.of(new FormatFn()))));
  }

  // Early, on-time and late panes.
  private static void triggers(Pipeline p) {
    TestStream<Long> script =
        TestStream.create(VarLongCoder.of())
            .addElements(
                TimestampedValue.of(0L, Instant.ofEpochSecond(0)), TimestampedValue.of(2L, Instant.ofEpochSecond(2)))
            .addElements(TimestampedValue.of(4L, Instant.ofEpochSecond(4)))
            .advanceWatermarkTo(Instant.ofEpochSecond(12))
            .addElements(TimestampedValue.of(6L, Instant.ofEpochSecond(6)))
            .advanceWatermarkToInfinity();
    PCollection<KV<String, Long>> some =
        p.apply(script).apply(WithKeys.of((Long x) -> keyed(x)).withKeyType(TypeDescriptors.strings()));
    collect(
        "panes",
        some.apply(
                Window.<KV<String, Long>>into(FixedWindows.of(Duration.standardSeconds(10)))
                    .triggering(
                        AfterWatermark.pastEndOfWindow()
                            .withEarlyFirings(AfterPane.elementCountAtLeast(2))
                            .withLateFirings(AfterPane.elementCountAtLeast(1)))
                    .withAllowedLateness(Duration.standardSeconds(100))
                    .accumulatingFiredPanes())
            .apply(GroupByKey.create())
            .apply(ParDo.of(new FormatFn())));
  }

  private static class StateFn extends DoFn<KV<String, Long>, String> {
    @StateId("value")
    private final StateSpec<ValueState<Long>> value = StateSpecs.value(VarLongCoder.of());

    @StateId("bag")
    private final StateSpec<BagState<Long>> bag = StateSpecs.bag(VarLongCoder.of());

    @StateId("sum")
    private final StateSpec<CombiningState<Long, long[], Long>> sum = StateSpecs.combining(Sum.ofLongs());

    @StateId("map")
    private final StateSpec<MapState<String, Long>> map = StateSpecs.map(StringUtf8Coder.of(), VarLongCoder.of());

    @StateId("set")
    private final StateSpec<SetState<Long>> set = StateSpecs.set(VarLongCoder.of());

    @StateId("multimap")
    private final StateSpec<MultimapState<String, Long>> multimap =
        StateSpecs.multimap(StringUtf8Coder.of(), VarLongCoder.of());

    @StateId("ordered")
    private final StateSpec<OrderedListState<Long>> ordered = StateSpecs.orderedList(VarLongCoder.of());

    @ProcessElement
    public void process(
        @Element KV<String, Long> e,
        @StateId("value") ValueState<Long> value,
        @StateId("bag") BagState<Long> bag,
        @StateId("sum") CombiningState<Long, long[], Long> sum,
        @StateId("map") MapState<String, Long> map,
        @StateId("set") SetState<Long> set,
        @StateId("multimap") MultimapState<String, Long> multimap,
        @StateId("ordered") OrderedListState<Long> ordered,
        OutputReceiver<String> out) {
      long count = value.read() == null ? 1 : value.read() + 1;
      value.write(count);
      long x = e.getValue();
      bag.add(x);
      sum.add(x);
      map.put("x" + x % 3, x % 3);
      set.add(x % 2);
      multimap.put("m" + x % 2, x % 4);
      ordered.add(TimestampedValue.of(x, Instant.ofEpochMilli(100 - x)));
      if (count == 5) {
        map.remove("x0");
        ordered.clearRange(Instant.ofEpochMilli(0), Instant.ofEpochMilli(100 - x));
        List<Long> inOrder = new ArrayList<>();
        ordered.read().forEach(each -> inOrder.add(each.getValue()));
        boolean descending = true;
        for (int i = 1; i < inOrder.size(); i++) {
          descending &= inOrder.get(i - 1) > inOrder.get(i);
        }
        out.output(
            e.getKey() + " " + sorted(bag.read()) + " " + sum.read() + " " + sorted(map.keys().read()) + " "
                + map.get("x1").read() + " " + sorted(set.read()) + set.contains(7L).read() + " "
                + sorted(multimap.keys().read()) + sorted(multimap.get("m0").read()) + descending);
        bag.clear();
        multimap.remove("m0");
        out.output(
            e.getKey() + " cleared " + sorted(bag.read()) + bag.isEmpty().read() + sorted(multimap.keys().read()));
      }
    }
  }

  private static void states(Pipeline p) {
    collect(
        "state",
        p.apply(GenerateSequence.from(0).to(10))
            .apply(WithKeys.of((Long x) -> keyed(x)).withKeyType(TypeDescriptors.strings()))
            .apply(ParDo.of(new StateFn())));
  }

  private static class TimerFn extends DoFn<KV<String, Long>, String> {
    @StateId("seen")
    private final StateSpec<BagState<Long>> seen = StateSpecs.bag(VarLongCoder.of());

    @TimerId("end")
    private final TimerSpec end = TimerSpecs.timer(TimeDomain.EVENT_TIME);

    @TimerId("soon")
    private final TimerSpec soon = TimerSpecs.timer(TimeDomain.PROCESSING_TIME);

    @TimerId("cleared")
    private final TimerSpec cleared = TimerSpecs.timer(TimeDomain.EVENT_TIME);

    @TimerFamily("family")
    private final TimerSpec family = TimerSpecs.timerMap(TimeDomain.EVENT_TIME);

    @ProcessElement
    public void process(
        @Element KV<String, Long> e,
        @Timestamp Instant time,
        BoundedWindow window,
        @StateId("seen") BagState<Long> seen,
        @TimerId("end") Timer end,
        @TimerId("soon") Timer soon,
        @TimerId("cleared") Timer cleared,
        @TimerFamily("family") TimerMap family) {
      seen.add(e.getValue());
      end.withOutputTimestamp(time).set(window.maxTimestamp());
      soon.offset(Duration.millis(10)).setRelative();
      cleared.set(window.maxTimestamp());
      cleared.clear();
      family.set("x" + e.getValue() % 3, time.plus(Duration.millis(1)));
    }

    @OnTimer("end")
    public void onEnd(
        OnTimerContext c, @Key String key, @StateId("seen") BagState<Long> seen, @TimerId("end") Timer end) {
      c.output(key + " end " + sorted(seen.read()) + " " + c.fireTimestamp().getMillis());
    }

    @OnTimer("soon")
    public void onSoon(@Key String key, OutputReceiver<String> out) {
      out.output(key + " soon");
    }

    @OnTimer("cleared")
    public void onCleared(@Key String key, OutputReceiver<String> out) {
      out.output(key + " cleared");
    }

    @OnTimerFamily("family")
    public void onFamily(OnTimerContext c, @Key String key, @TimerId String id) {
      c.output(key + " family " + id + " " + c.fireTimestamp().getMillis());
    }

    @OnWindowExpiration
    public void onExpiration(
        @Key String key, BoundedWindow window, @StateId("seen") BagState<Long> seen, OutputReceiver<String> out) {
      out.output(key + " expired " + sorted(seen.read()) + " " + window.maxTimestamp().getMillis());
    }
  }

  private static void timers(Pipeline p) {
    collect(
        "timers",
        stamped(p, "Some", 0, 1, 2, 3, 14)
            .apply(WithKeys.of((Long x) -> keyed(x)).withKeyType(TypeDescriptors.strings()))
            .apply(Window.into(FixedWindows.of(Duration.standardSeconds(10))))
            .apply(ParDo.of(new TimerFn())));
  }

  private static void reading(Pipeline p) {
    show("bounded", p.apply("Bounded", GenerateSequence.from(0).to(20)).apply("Count", Count.globally()));
    show(
        "unbounded",
        p.apply("Unbounded", GenerateSequence.from(0).to(20).withRate(10, Duration.millis(20)))
            .apply(Window.into(FixedWindows.of(Duration.standardDays(10_000))))
            .apply("Count unbounded", Combine.globally(Count.<Long>combineFn()).withoutDefaults()));
    p.apply("Lines", Create.of("x", "y", "z")).apply(TextIO.write().to(output(p) + "/written").withoutSharding());
    collect("text", p.apply(TextIO.read().from(p.getOptions().as(Options.class).getInput())));
  }

  private static void periodic(Pipeline p) {
    Instant start = Instant.ofEpochSecond(1_000_000);
    collect(
        "counts",
        p.apply(PeriodicImpulse.create().startAt(start).stopAt(start.plus(5000)).withInterval(Duration.millis(500)))
            .apply(Window.into(FixedWindows.of(Duration.standardSeconds(2))))
            .apply(MapElements.into(TypeDescriptors.longs()).via(x -> x.getMillis()))
            .apply(WithKeys.of("all"))
            .apply(GroupByKey.create())
            .apply(ParDo.of(new FormatFn())));
  }

  /** Puts out the numbers of a range; it asks to be resumed after each hundred. */
  @DoFn.BoundedPerElement
  private static class CountFn extends DoFn<String, Long> {
    @GetInitialRestriction
    public OffsetRange initial() {
      return new OffsetRange(0, 1000);
    }

    @SplitRestriction
    public void split(@Restriction OffsetRange range, OutputReceiver<OffsetRange> out) {
      range.split(500, 500).forEach(out::output);
    }

    @ProcessElement
    public ProcessContinuation process(
        RestrictionTracker<OffsetRange, Long> tracker, @Element String name, OutputReceiver<Long> out) {
      long first = tracker.currentRestriction().getFrom();
      for (long i = first; i < first + 100; i++) {
        if (!tracker.tryClaim(i)) {
          return ProcessContinuation.stop();
        }
        out.output(i);
      }
      return ProcessContinuation.resume().withResumeDelay(Duration.millis(20));
    }
  }

  private static void splitting(Pipeline p) {
    PCollection<Long> numbers = p.apply(Create.of("a", "b")).apply("Count up", ParDo.of(new CountFn()));
    show("sum", numbers.apply(Sum.longsGlobally()));
    show("count", numbers.apply(Count.globally()));
    show("different", numbers.apply(Distinct.create()).apply("Count different", Count.globally()));
  }

  /** A value whose coder only Java knows. */
  private static class Point implements Comparable<Point> {
    final int x;

    Point(int x) {
      this.x = x;
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof Point && ((Point) other).x == x;
    }

    @Override
    public int hashCode() {
      return x;
    }

    @Override
    public int compareTo(Point other) {
      return Integer.compare(x, other.x);
    }

    @Override
    public String toString() {
      return "Point " + x;
    }
  }

  private static void coders(Pipeline p) {
    collect(
        "points",
        p.apply(Create.of(1, 2, 3))
            .apply(
                "Points",
                MapElements.via(
                    new SimpleFunction<Integer, KV<Integer, Point>>() {
                      @Override
                      public KV<Integer, Point> apply(Integer x) {
                        return KV.of(x % 2, new Point(x));
                      }
                    }))
            .setCoder(KvCoder.of(VarIntCoder.of(), new PointCoder()))
            .apply(GroupByKey.create())
            .apply("Format points", text(kv -> kv.getKey() + " " + sorted(kv.getValue()))));
    Schema schema =
        Schema.builder()
            .addStringField("name")
            .addNullableField("size", Schema.FieldType.INT32)
            .addDateTimeField("at")
            .build();
    show(
        "rows",
        p.apply(
                "Rows",
                Create.of(
                        Row.withSchema(schema).addValues("a", 1, Instant.ofEpochSecond(1)).build(),
                        Row.withSchema(schema).addValues("b", null, Instant.ofEpochSecond(2)).build(),
                        Row.withSchema(schema).addValues("a", 1, Instant.ofEpochSecond(1)).build())
                    .withRowSchema(schema))
            .apply("Keys", WithKeys.of((Row row) -> row).withKeyType(TypeDescriptors.rows()))
            .setCoder(KvCoder.of(RowCoder.of(schema), RowCoder.of(schema)))
            .apply("Group rows", GroupByKey.create())
            .apply(
                "Format rows",
                text(
                    kv ->
                        kv.getKey().getString("name") + kv.getKey().getInt32("size") + " "
                            + list(kv.getValue()).size())));
  }

  private static void finalizing(Pipeline p) {
    String file = output(p) + "/finalized";
    collect(
        "numbers",
        p.apply(GenerateSequence.from(0).to(5))
            .apply(
                "Finalize",
                ParDo.of(
                    new DoFn<Long, String>() {
                      @ProcessElement
                      public void process(@Element Long x, BundleFinalizer finalizer, OutputReceiver<String> out) {
                        out.output("" + x);
                        finalizer.afterBundleCommit(
                            Instant.now().plus(Duration.standardMinutes(1)), () -> append(Path.of(file), "" + x));
                      }
                    })));
  }

  private static class FailFn extends DoFn<Long, String> {
    @ProcessElement
    public void process(@Element Long x, OutputReceiver<String> out) {
      if (x == 3) {
        throw new IllegalStateException("no three");
      }
      out.output("" + x);
    }
  }

  private static void failing(Pipeline p) {
    collect("numbers", p.apply(Create.of(0L, 1L, 2L, 3L)).apply("Wrong", ParDo.of(new FailFn())));
  }

  private static void metrics(Pipeline p) {
    p.apply(GenerateSequence.from(0).to(10))
        .apply(
            "Measure",
            ParDo.of(
                new DoFn<Long, Void>() {
                  private final Counter seen = Metrics.counter("programs", "seen");
                  private final Distribution sizes = Metrics.distribution("programs", "sizes");
                  private final Gauge last = Metrics.gauge("programs", "last");

                  @ProcessElement
                  public void process(@Element Long x) {
                    seen.inc();
                    sizes.update(x);
                    last.set(4);
                  }
                }));
  }

  /** Sessions of its own: a merging WindowFn that only Java knows. */
  private static class OwnSessions extends WindowFn<Object, IntervalWindow> {
    private final Sessions sessions = Sessions.withGapDuration(Duration.standardSeconds(5));

    @Override
    public Collection<IntervalWindow> assignWindows(AssignContext c) {
      return List.of(new IntervalWindow(c.timestamp(), Duration.standardSeconds(5)));
    }

    @Override
    public void mergeWindows(MergeContext c) throws Exception {
      sessions.mergeWindows(sessions.new MergeContext() {
        @Override
        public Collection<IntervalWindow> windows() {
          return c.windows();
        }

        @Override
        public void merge(Collection<IntervalWindow> merged, IntervalWindow result) throws Exception {
          c.merge(merged, result);
        }
      });
    }

    @Override
    public boolean isCompatible(WindowFn<?, ?> other) {
      return other instanceof OwnSessions;
    }

    @Override
    public Coder<IntervalWindow> windowCoder() {
      return IntervalWindow.getCoder();
    }

    @Override
    public WindowMappingFn<IntervalWindow> getDefaultWindowMappingFn() {
      throw new UnsupportedOperationException("no side inputs");
    }
  }

  private static void merging(Pipeline p) {
    collect(
        "merged",
        stamped(p, "Some", 0, 3, 14)
            .apply(WithKeys.of("all"))
            .apply(Window.into(new OwnSessions()))
            .apply(GroupByKey.create())
            .apply(ParDo.of(new FormatFn())));
  }

  private static class PointFn extends DoFn<KV<Point, Point>, String> {
    @StateId("map")
    private final StateSpec<MapState<Point, Point>> map =
        StateSpecs.map(new PointCoder(), new PointCoder());

    @StateId("ordered")
    private final StateSpec<OrderedListState<Point>> ordered = StateSpecs.orderedList(new PointCoder());

    @StateId("bag")
    private final StateSpec<BagState<Point>> bag = StateSpecs.bag(new PointCoder());

    @TimerId("end")
    private final TimerSpec end = TimerSpecs.timer(TimeDomain.EVENT_TIME);

    @ProcessElement
    public void process(
        @Element KV<Point, Point> e,
        @StateId("map") MapState<Point, Point> map,
        @StateId("ordered") OrderedListState<Point> ordered,
        @StateId("bag") BagState<Point> bag,
        @TimerId("end") Timer end) {
      map.put(e.getValue(), new Point(-e.getValue().x));
      ordered.add(TimestampedValue.of(e.getValue(), Instant.ofEpochMilli(100 - e.getValue().x)));
      bag.add(e.getValue());
      end.set(Instant.ofEpochSecond(1));
    }

    @OnTimer("end")
    public void onEnd(
        @Key Point key,
        @StateId("map") MapState<Point, Point> map,
        @StateId("ordered") OrderedListState<Point> ordered,
        @StateId("bag") BagState<Point> bag,
        OutputReceiver<String> out) {
      List<Point> values = new ArrayList<>();
      sorted(map.keys().read()).forEach(each -> values.add(map.get(each).read()));
      List<String> inOrder = new ArrayList<>();
      ordered.read().forEach(each -> inOrder.add(each.getValue().x + "@" + each.getTimestamp().getMillis()));
      out.output(key + " " + sorted(map.keys().read()) + values + inOrder + sorted(bag.read()));
    }
  }

  private static class EntriesFn extends DoFn<KV<Point, Point>, String> {
    @StateId("known")
    private final StateSpec<MultimapState<Point, Long>> known =
        StateSpecs.multimap(new PointCoder(), VarLongCoder.of());

    @StateId("own")
    private final StateSpec<MultimapState<Long, Point>> own =
        StateSpecs.multimap(VarLongCoder.of(), new PointCoder());

    @ProcessElement
    public void process(
        @Element KV<Point, Point> e,
        @StateId("known") MultimapState<Point, Long> known,
        @StateId("own") MultimapState<Long, Point> own,
        OutputReceiver<String> out) {
      known.put(e.getValue(), 1L);
      own.put(1L, e.getValue());
      out.output("" + list(known.entries().read()).size());
      out.output("" + list(own.entries().read()).size());
    }
  }

  /** A deterministic coder that only Java knows. */
  private static class PointCoder extends CustomCoder<Point> {
    @Override
    public void encode(Point point, OutputStream out) throws IOException {
      VarIntCoder.of().encode(point.x, out);
    }

    @Override
    public Point decode(InputStream in) throws IOException {
      return new Point(VarIntCoder.of().decode(in));
    }

    @Override
    public void verifyDeterministic() {}
  }

  private static PCollection<KV<Point, Point>> points(Pipeline p) {
    return p.apply(Create.of(1, 2, 3))
        .apply(
            "Points",
            MapElements.via(
                new SimpleFunction<Integer, KV<Point, Point>>() {
                  @Override
                  public KV<Point, Point> apply(Integer x) {
                    return KV.of(new Point(x % 2), new Point(x));
                  }
                }))
        .setCoder(KvCoder.of(new PointCoder(), new PointCoder()));
  }

  // Keys, and values of state, whose coders only Java knows.
  private static void ownCoders(Pipeline p) {
    collect("points", points(p).apply("Keep", ParDo.of(new PointFn())));
  }

  private static void entries(Pipeline p) {
    collect("entries", points(p).apply("Keep", ParDo.of(new EntriesFn())));
  }

  /** A window that only Java knows. */
  private static class Named extends BoundedWindow implements Serializable {
    final String name;

    Named(String name) {
      this.name = name;
    }

    @Override
    public Instant maxTimestamp() {
      return Instant.ofEpochSecond(100);
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof Named && ((Named) other).name.equals(name);
    }

    @Override
    public int hashCode() {
      return name.hashCode();
    }

    @Override
    public String toString() {
      return name;
    }
  }

  private static class NamedCoder extends CustomCoder<Named> {
    @Override
    public void encode(Named window, OutputStream out) throws IOException {
      StringUtf8Coder.of().encode(window.name, out);
    }

    @Override
    public Named decode(InputStream in) throws IOException {
      return new Named(StringUtf8Coder.of().decode(in));
    }

    @Override
    public void verifyDeterministic() {}
  }

  private static class NamedFn extends NonMergingWindowFn<Object, Named> {
    @Override
    public Collection<Named> assignWindows(AssignContext c) {
      return List.of(new Named(c.timestamp().getMillis() % 2000 == 0 ? "even" : "odd"));
    }

    @Override
    public boolean isCompatible(WindowFn<?, ?> other) {
      return other instanceof NamedFn;
    }

    @Override
    public Coder<Named> windowCoder() {
      return new NamedCoder();
    }

    @Override
    public WindowMappingFn<Named> getDefaultWindowMappingFn() {
      return new WindowMappingFn<Named>() {
        @Override
        public Named getSideInputWindow(BoundedWindow window) {
          return new Named(window.maxTimestamp().getMillis() < 10_000 ? "even" : "odd");
        }
      };
    }
  }

  private static void ownWindows(Pipeline p) {
    PCollection<Long> named = stamped(p, "Some", 0, 1, 2, 3).apply("Into own", Window.into(new NamedFn()));
    collect(
        "groups",
        named
            .apply(WithKeys.of("all"))
            .apply(GroupByKey.create())
            .apply(
                "Format",
                ParDo.of(
                    new DoFn<KV<String, Iterable<Long>>, String>() {
                      @ProcessElement
                      public void process(
                          @Element KV<String, Iterable<Long>> group, BoundedWindow window, OutputReceiver<String> out) {
                        out.output(window + " " + sorted(group.getValue()));
                      }
                    })));
  }

  // A side input in windows that only Java knows.
  private static void ownSideWindows(Pipeline p) {
    PCollection<Long> named = stamped(p, "Some", 0, 1, 2, 3).apply("Into own", Window.into(new NamedFn()));
    PCollectionView<Iterable<Long>> view = named.apply(View.asIterable());
    collect(
        "sides",
        stamped(p, "Main", 5, 15)
            .apply(Window.into(FixedWindows.of(Duration.standardSeconds(10))))
            .apply(
                "Look",
                ParDo.of(
                        new DoFn<Long, String>() {
                          @ProcessElement
                          public void process(ProcessContext c) {
                            c.output(c.element() + " " + sorted(c.sideInput(view)));
                          }
                        })
                    .withSideInputs(view)));
  }

  /** An unbounded source of ten numbers, with marks that are finalized. */
  private static class Numbers extends UnboundedSource<Long, Numbers.Mark> {
    private final String file;

    Numbers(String file) {
      this.file = file;
    }

    static class Mark implements UnboundedSource.CheckpointMark, Serializable {
      final long next;
      final String file;

      Mark(long next, String file) {
        this.next = next;
        this.file = file;
      }

      @Override
      public void finalizeCheckpoint() {
        append(Path.of(file), "" + next);
      }
    }

    @Override
    public List<Numbers> split(int desired, PipelineOptions options) {
      return List.of(this);
    }

    @Override
    public UnboundedReader<Long> createReader(PipelineOptions options, Mark mark) {
      return new UnboundedReader<Long>() {
        private long current = mark == null ? -1 : mark.next - 1;

        @Override
        public boolean start() {
          return advance();
        }

        @Override
        public boolean advance() {
          if (current < 9) {
            current++;
            return true;
          }
          return false;
        }

        @Override
        public Long getCurrent() {
          return current;
        }

        @Override
        public Instant getCurrentTimestamp() {
          return Instant.ofEpochSecond(current);
        }

        @Override
        public Instant getWatermark() {
          return current < 9 ? Instant.ofEpochSecond(current) : BoundedWindow.TIMESTAMP_MAX_VALUE;
        }

        @Override
        public Mark getCheckpointMark() {
          return new Mark(current + 1, file);
        }

        @Override
        public Numbers getCurrentSource() {
          return Numbers.this;
        }

        @Override
        public void close() {}
      };
    }

    @Override
    public Coder<Mark> getCheckpointMarkCoder() {
      return SerializableCoder.of(Mark.class);
    }

    @Override
    public Coder<Long> getOutputCoder() {
      return VarLongCoder.of();
    }
  }

  private static void source(Pipeline p) {
    collect(
        "groups",
        p.apply(Read.from(new Numbers(output(p) + "/finalized")))
            .apply(WithKeys.of((Long x) -> keyed(x)).withKeyType(TypeDescriptors.strings()))
            .apply(Window.into(FixedWindows.of(Duration.standardSeconds(4))))
            .apply(GroupByKey.create())
            .apply(ParDo.of(new FormatFn())));
  }

  private static void endless(Pipeline p) {
    show("numbers", p.apply(GenerateSequence.from(0).withRate(1, Duration.millis(20))));
  }
}
