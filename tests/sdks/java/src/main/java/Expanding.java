import java.util.Map;
import org.apache.beam.sdk.expansion.ExternalTransformRegistrar;
import org.apache.beam.sdk.expansion.service.ExpansionService;
import org.apache.beam.sdk.io.TextIO;
import org.apache.beam.sdk.transforms.Count;
import org.apache.beam.sdk.transforms.ExternalTransformBuilder;
import org.apache.beam.sdk.transforms.MapElements;
import org.apache.beam.sdk.transforms.PTransform;
import org.apache.beam.sdk.values.PBegin;
import org.apache.beam.sdk.values.PCollection;
import org.apache.beam.sdk.values.TypeDescriptors;

/** An expansion service with a source and a transform, as Beam's cross-language connectors have one. */
public final class Expanding implements ExternalTransformRegistrar {
  public static class Files {
    private String pattern = "";

    public void setPattern(String pattern) {
      this.pattern = pattern;
    }
  }

  /** Reads lines of text files. */
  public static class ReadLines
      implements ExternalTransformBuilder<Files, PBegin, PCollection<String>> {
    @Override
    public PTransform<PBegin, PCollection<String>> buildExternal(Files files) {
      return TextIO.read().from(files.pattern);
    }
  }

  public static class Nothing {}

  /** Counts equal lines, and writes "line: count". */
  public static class CountLines
      implements ExternalTransformBuilder<Nothing, PCollection<String>, PCollection<String>> {
    @Override
    public PTransform<PCollection<String>, PCollection<String>> buildExternal(Nothing nothing) {
      return new Counting();
    }
  }

  public static class Counting extends PTransform<PCollection<String>, PCollection<String>> {
    @Override
    public PCollection<String> expand(PCollection<String> lines) {
      return lines
          .apply(Count.perElement())
          .apply(
              MapElements.into(TypeDescriptors.strings())
                  .via(pair -> pair.getKey() + ": " + pair.getValue()));
    }
  }

  @Override
  public Map<String, ExternalTransformBuilder<?, ?, ?>> knownBuilderInstances() {
    return Map.of("arcbeam:test:java:read:v1", new ReadLines(), "arcbeam:test:java:count:v1", new CountLines());
  }

  public static void main(String[] args) throws Exception {
    ExpansionService.main(args);
  }
}
