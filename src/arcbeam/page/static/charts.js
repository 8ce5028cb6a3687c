// Draws a job's figures over time with uPlot. The values come as JSON; the page says when there are newer ones.
"use strict";
(() => {
  const place = document.getElementById("charts");
  const axis = document.getElementById("axis");
  if (!place || !axis) return;

  // In milliseconds: newer values are requested at most so often.
  const pause = 5000;
  const height = 170;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const faint = (part) => `color-mix(in srgb, ${colour("--accent")} ${part}%, ${colour("--ground")})`;
  const marks = { trouble: ["--error", []], savepoint: ["--accent", [5, 3]] };

  const number = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });
  const local = (seconds) => new Date(seconds * 1000).toLocaleString("sv");
  const sized = (...sizes) => (value) => {
    const [, size, unit] = sizes.find(([from]) => Math.abs(value) >= from) ?? sizes.at(-1);
    return `${number(value / size)} ${unit}`;
  };
  const units = {
    s: sized([172800, 86400, "days"], [7200, 3600, "h"], [120, 60, "min"], [0, 1, "s"]),
    B: sized([1e12, 1e12, "TB"], [1e9, 1e9, "GB"], [1e6, 1e6, "MB"], [1e3, 1e3, "kB"], [0, 1, "B"]),
    "/s": (value) => `${number(value)}/s`,
    "": number,
    time: local,
  };
  const shown = (unit, value) => (value == null ? "–" : units[unit](value));
  // Between two lines of an axis of time.
  const steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800]
    .concat([1, 2, 6, 12, 24, 48, 120, 240, 720, 2400, 8760].map((hours) => 3600 * hours))
    .concat([1, 10, 100, 1000].flatMap((ten) => [1000, 2000, 5000].map((days) => 86400 * ten * days)));

  let all = null;
  let plots = [];

  // Of a stack, each line is the sum of those before it. The highest is drawn first.
  function drawn({ values, stacked }) {
    if (!stacked) return values;
    const sums = [];
    for (const column of values) {
      const below = sums.at(-1);
      sums.push(column.map((value, at) => (value == null ? null : value + (below?.[at] ?? 0))));
    }
    return sums.reverse();
  }

  function drawMarks({ ctx, bbox, valToPos }) {
    ctx.save();
    for (const { time, kind } of all.events) {
      const x = valToPos(time, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      const [hue, dashes] = marks[kind] ?? ["--quiet", [1, 3]];
      ctx.strokeStyle = colour(hue);
      ctx.setLineDash(dashes);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  function eventsAt(at) {
    const [from, to] = [all.times[at - 1] ?? 0, all.times[at]];
    const found = all.events.filter(({ time }) => from < time && time <= to);
    return found.map(({ kind, text }) => `${kind}: ${text}`).join("; ");
  }

  // What has no line, but a text below the chart.
  const text = (label, of) => ({
    label,
    stroke: "transparent",
    points: { show: false },
    value: (_, value, line, at) => (at == null ? "–" : of(at) || "–"),
  });

  function lines(which) {
    const { lines: names, stacked, unit } = all.charts[which];
    const gauge = !stacked && names.length === 3;
    const of = names.map((label, at) => ({
      label,
      stroke: () => (gauge && at ? "transparent" : colour(at && !stacked ? "--quiet" : "--accent")),
      width: stacked ? 0.5 : 1.5,
      fill: stacked ? () => faint(75 - 17 * at) : undefined,
      points: { show: gauge && at ? false : undefined, size: 5 },
      value: (_, value, line, i) => shown(unit, i == null ? null : all.charts[which].values[at][i]),
    }));
    return stacked ? of.reverse() : of;
  }

  // The date is in the text below the chart.
  function ticks(_, times, axisNumber, space, step) {
    return times.map((time) => (step < 86400 ? local(time).slice(11, step < 60 ? 19 : 16) : local(time).slice(0, 10)));
  }

  function range({ unit }, least, greatest) {
    if (least == null) return [0, 1];
    return unit === "time" ? [least, greatest + 1] : [Math.min(0, least), greatest > 0 ? 1.05 * greatest : 1];
  }

  function plot(chart, which) {
    const figure = document.createElement("figure");
    figure.append(document.createElement("figcaption"));
    place.append(figure);
    const grid = { stroke: () => colour("--line"), width: 1 };
    const common = { stroke: () => colour("--quiet"), grid, ticks: grid, font: "11px system-ui, sans-serif" };
    const texts = [...(chart.unit === "time" ? [text("held by", (at) => all.held[at])] : []), text("events", eventsAt)];
    // Numbers of any length fit beside the chart.
    const wide = (_, labels) => Math.max(70, 22 + 6.2 * Math.max(0, ...(labels ?? []).map((label) => label.length)));
    const y = { ...common, space: 25, size: wide, values: (_, at) => at.map((each) => shown(chart.unit, each)) };
    if (["s", "time"].includes(chart.unit)) y.incrs = steps;
    const made = new uPlot({
      width: figure.clientWidth,
      height,
      // What is pointed at, or zoomed, in one chart is in all.
      cursor: { sync: { key: "charts" } },
      scales: { y: { range: (_, least, greatest) => range(chart, least, greatest) } },
      axes: [{ ...common, values: ticks, space: 70 }, y],
      series: [{ label: "time", value: (_, at) => (at == null ? "–" : local(at)) }, ...lines(which), ...texts],
      bands: !chart.stacked && chart.lines.length === 3 ? [{ series: [3, 2], fill: () => faint(25) }] : [],
      hooks: { drawClear: [drawMarks] },
    }, null, figure);
    new ResizeObserver(() => made.setSize({ width: figure.clientWidth, height })).observe(figure);
    return made;
  }

  // Values from the first new time on replace those that are here; those before the beginning are dropped.
  function joined(found) {
    if (!all) return found;
    const from = all.times.filter((time) => time < found.start).length;
    const to = all.times.filter((time) => time < (found.times[0] ?? Infinity)).length;
    const of = (old, now) => [...old.slice(from, to), ...now];
    const charts = found.charts.map((chart, which) => ({
      ...chart,
      values: chart.values.map((column, line) => of(all.charts[which].values[line], column)),
    }));
    return { ...found, charts, times: of(all.times, found.times), held: of(all.held, found.held) };
  }

  function show() {
    if (!plots.length) plots = all.charts.map(plot);
    plots.forEach((made, which) => {
      const chart = all.charts[which];
      const [before, { min, max }] = [made.data[0] ?? [], made.scales.x];
      const zoomed = before.length > 0 && (min > before[0] || max < before.at(-1));
      const columns = [all.times, ...drawn(chart)];
      while (columns.length < made.series.length) columns.push(all.times.map(() => null));
      made.setData(columns, !zoomed);
      if (zoomed) made.redraw();
      const last = (chart.stacked ? drawn(chart) : chart.values)[0].findLast((value) => value != null);
      made.root.previousSibling.textContent = `${chart.name}: ${shown(chart.unit, last)}`;
    });
  }

  async function load() {
    // What the driver writes replaces values that the page has seen, so those are requested again.
    const answer = await fetch(place.dataset.values + (all ? `&after=${all.written}` : ""));
    if (!answer.ok) return;
    all = joined(await answer.json());
    show();
  }

  let due = null;
  const later = () => {
    due = null;
    load().catch(() => {});
  };
  new MutationObserver(() => { due ??= setTimeout(later, pause); }).observe(axis, { attributeFilter: ["data-newest"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach((made) => made.redraw()));
  later();
})();
