"""The plan as an SVG picture. igraph (the `explain` extra) computes the layout; it is imported only for a picture.

Owns sizes, colours and lines. A pure function from a plan to a string; imports only `model.plan`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from arcbeam.errors import SetupError
from arcbeam.explain.words import EXCHANGES, observers_of, side_text, transform_names, words_of
from arcbeam.model.plan import Channel, Plan, Routing, Stage

_STAGE_WIDTH = 280.0
_CHANNEL_WIDTH = 224.0
_COLUMN = 304.0  # Distance between centres of neighbours; wider than any box, so that neighbours never touch.
_LAYER_GAP = 46.0
_MARGIN = 28.0
_LINE = 18.0
_HEADER = 26.0
_CHANNEL_HEIGHT = 40.0
_MAX_TRANSFORMS = 14
_MIN_WIDTH = 560.0

_COLOURS = {
    Routing.FORWARD: "#64748b",
    Routing.SPREAD: "#0d9488",
    Routing.KEYED: "#7c3aed",
    Routing.GROUPED: "#2563eb",
    Routing.SIDE: "#b45309",
    Routing.SIDE_KEYED: "#b45309",
}
_MEANINGS = {
    Routing.FORWARD: "stays in its partition",
    Routing.SPREAD: "spread over all shards",
    Routing.KEYED: "values of a key to one shard",
    Routing.GROUPED: "grouped, then to the key's shard",
    Routing.SIDE: "files, read as an iterable",
    Routing.SIDE_KEYED: "exchanged, then looked up by key",
}
_STYLE = """
text { font-family: 'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif; font-size: 11px; fill: #0f172a; }
.title { font-size: 16px; font-weight: 600; }
.muted { fill: #64748b; }
.stage > rect { fill: #ffffff; stroke: #94a3b8; stroke-width: 1.2; }
.stage > path { fill: #e2e8f0; }
.stateful > path { fill: #ddd6fe; }
.id { font-weight: 700; font-size: 12px; }
.channel rect { fill: #ffffff; stroke-width: 1.2; }
.routing { font-weight: 700; }
.exchange text { fill: #ffffff; }
.edge { fill: none; stroke-width: 1.4; }
.wide { stroke-width: 2.8; }
.side { stroke-dasharray: 6 4; }
"""


@dataclass(slots=True)
class _Box:
    """A vertex of the picture.

    Attributes:
        layer: row of the layered layout, from 0.
        width, height: pixels; a bend of a long edge has width 0 and takes its layer's height.
        x: centre; y: top. Set by the layout.
        ins, outs: neighbours in the layers above and below.
    """

    layer: int
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0
    ins: list[_Box] = field(default_factory=list, repr=False)
    outs: list[_Box] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class _Edge:
    """A line between a stage and a channel: its boxes from top to bottom, bends included."""

    path: tuple[_Box, ...]
    routing: Routing
    title: str
    dashed: bool


@dataclass(frozen=True, slots=True)
class _Picture:
    """All parts of the picture, and its size."""

    stages: dict[str, _Box]
    channels: dict[int, _Box]
    edges: list[_Edge]
    width: float
    bottom: float


def as_svg(plan: Plan) -> str:
    """Return the plan as an SVG picture, from top to bottom; full names and URNs are in the tooltips.

    Channels are vertices of the layered graph, as stages are. So each has its own space, and labels do not overlap.
    Flattens (several producers) and fan-outs are visible, too. Exchanges are filled and thick, side inputs dashed.

    Raises:
        SetupError: igraph is not installed.
    """
    picture = _lay_out(plan)
    routings = [routing for routing in Routing if any(c.routing is routing for c in plan.channels)]
    legend, legend_height = _draw_legend(routings, picture.width, picture.bottom + _MARGIN)
    height = picture.bottom + _MARGIN + legend_height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{picture.width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {picture.width:.0f} {height:.0f}" role="img">',
        f"<title>{escape(plan.name)}</title>",
        f"<style>{_STYLE}</style>",
        "<defs>",
        *(_marker(routing) for routing in routings),
        "</defs>",
        '<rect width="100%" height="100%" fill="#f8fafc"/>',
        _text(_MARGIN, _MARGIN + 10, _shorten(plan.name, 48) or "plan", "title", plan.name),
        *(_draw_edge(edge) for edge in picture.edges),
        *(_draw_stage(stage, picture.stages[stage.id]) for stage in plan.stages),
        *(_draw_channel(channel, picture.channels[channel.index]) for channel in plan.channels),
        *legend,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _lay_out(plan: Plan) -> _Picture:
    channels: dict[int, _Box] = {}
    stages: dict[str, _Box] = {}
    layers = _layers(plan)
    for channel in plan.channels:
        channels[channel.index] = _Box(layers[channel.index], _CHANNEL_WIDTH, _CHANNEL_HEIGHT)
    for stage in plan.stages:
        lines = min(len(stage.transforms), _MAX_TRANSFORMS + 1) + len(_notes(stage))
        stages[stage.id] = _Box(layers[stage.id], _STAGE_WIDTH, _HEADER + 12 + _LINE * max(lines, 1))
    boxes = [*stages.values(), *channels.values()]

    edges: list[_Edge] = []

    def connect(upper: _Box, lower: _Box, channel: Channel, title: str, dashed: bool) -> None:
        bends = [_Box(layer, 0.0, 0.0) for layer in range(upper.layer + 1, lower.layer)]
        boxes.extend(bends)
        path = (upper, *bends, lower)
        for above, below in itertools.pairwise(path):
            above.outs.append(below)
            below.ins.append(above)
        edges.append(_Edge(path, channel.routing, title, dashed))

    for channel in plan.channels:
        for producer in channel.producers:
            title = f"{producer} writes c{channel.index}"
            connect(stages[producer], channels[channel.index], channel, title, dashed=False)
    for stage in plan.stages:
        if stage.source is not None:
            title = f"{stage.id} reads c{stage.source}"
            connect(channels[stage.source], stages[stage.id], plan.channels[stage.source], title, dashed=False)
        sides: dict[int, list[str]] = defaultdict(list)
        for side in stage.side_inputs:
            sides[side.channel].append(f"{stage.id} reads c{side.channel} {side_text(side, transform_names(stage))}")
        for index, titles in sides.items():
            connect(channels[index], stages[stage.id], plan.channels[index], "\n".join(titles), dashed=True)
    return _place(boxes, stages, channels, edges)


def _layers(plan: Plan) -> dict[str | int, int]:
    """Return the layer of each stage (by id) and channel (by index): below its inputs, sources close to readers."""
    layers: dict[str | int, int] = {}
    written: dict[int, int] = defaultdict(int)
    for stage in plan.stages:
        needs = [s.channel for s in stage.side_inputs] + ([] if stage.source is None else [stage.source])
        layers[stage.id] = max((written[channel] + 1 for channel in needs), default=0)
        for sink in stage.sinks:
            written[sink] = max(written[sink], layers[stage.id] + 1)
    layers |= {channel.index: max(written[channel.index], 0) for channel in plan.channels}
    # An impulse may be anywhere above its consumers. Directly above them the lines are shortest.
    readers: dict[int, list[int]] = defaultdict(list)
    for stage in plan.stages:
        for index in {s.channel for s in stage.side_inputs} | ({stage.source} if stage.source is not None else set()):
            readers[index].append(layers[stage.id])
    for stage in plan.stages:
        lonely = stage.sinks and all(plan.channels[i].producers == (stage.id,) and readers[i] for i in stage.sinks)
        if stage.source is None and not stage.side_inputs and lonely:
            layers[stage.id] = min(min(readers[i]) for i in stage.sinks) - 2
            layers |= dict.fromkeys(stage.sinks, layers[stage.id] + 1)
    return layers


def _place(boxes: Sequence[_Box], stages: dict[str, _Box], channels: dict[int, _Box], edges: list[_Edge]) -> _Picture:
    top = _MARGIN + 30
    if not boxes:
        return _Picture(stages, channels, edges, _MIN_WIDTH, top)
    try:
        import igraph
    except ImportError as error:
        raise SetupError(
            "a picture of the plan needs the package igraph, which is not installed",
            "pip install 'arcbeam[explain]'; the text and JSON forms work without it",
        ) from error
    numbers = {id(box): number for number, box in enumerate(boxes)}
    pairs = [(numbers[id(box)], numbers[id(below)]) for box in boxes for below in box.outs]
    graph = igraph.Graph(n=len(boxes), edges=pairs, directed=True)
    layout = graph.layout_sugiyama(layers=[box.layer for box in boxes], hgap=1, vgap=1, maxiter=200)
    xs = [layout[number][0] for number in range(len(boxes))]
    span = (max(xs) - min(xs)) * _COLUMN + _STAGE_WIDTH
    width = max(span + 2 * _MARGIN, _MIN_WIDTH)
    left = (width - span) / 2 + _STAGE_WIDTH / 2
    heights: dict[int, float] = defaultdict(float)
    for box in boxes:
        heights[box.layer] = max(heights[box.layer], box.height)
    tops: dict[int, float] = {}
    for layer in sorted(heights):
        tops[layer] = top
        top += heights[layer] + _LAYER_GAP
    for box, x in zip(boxes, xs, strict=True):
        box.x = left + (x - min(xs)) * _COLUMN
        box.y = tops[box.layer]
        if box.width == 0.0:
            box.height = heights[box.layer]
    picture = _Picture(stages, channels, edges, width, top - _LAYER_GAP)
    for box in boxes:
        box.ins.sort(key=lambda above: above.x)
        box.outs.sort(key=lambda below: below.x)
    return picture


def _port(box: _Box, neighbours: Sequence[_Box], neighbour: _Box) -> float:
    """Return where a line meets a box: lines are spread around its centre, in the order of their other ends."""
    position = next(i for i, other in enumerate(neighbours) if other is neighbour)
    step = min(26.0, box.width * 0.8 / len(neighbours))
    return box.x + (position - (len(neighbours) - 1) / 2) * step


def _draw_edge(edge: _Edge) -> str:
    commands: list[str] = []
    for above, below in zip(edge.path, edge.path[1:], strict=False):
        x1, y1 = _port(above, above.outs, below), above.y + above.height
        x2, y2 = _port(below, below.ins, above), below.y
        # A box may be shorter than its layer: first straight to the gap, so that no line crosses a box.
        gap = y2 - _LAYER_GAP
        lower, upper = gap + 0.75 * _LAYER_GAP, gap + 0.25 * _LAYER_GAP
        commands.append(f"{'M' if not commands else 'L'}{x1:.1f},{y1:.1f} L{x1:.1f},{gap:.1f}")
        commands.append(f"C{x1:.1f},{lower:.1f} {x2:.1f},{upper:.1f} {x2:.1f},{y2:.1f}")
    classes = ["edge", *(["wide"] if edge.routing in EXCHANGES else []), *(["side"] if edge.dashed else [])]
    return (
        f'<path class="{" ".join(classes)}" stroke="{_COLOURS[edge.routing]}" d="{" ".join(commands)}" '
        f'marker-end="url(#to-{edge.routing.value})"><title>{escape(edge.title)}</title></path>'
    )


def _draw_stage(stage: Stage, box: _Box) -> str:
    left, right = box.x - box.width / 2, box.x + box.width / 2
    flags = [] if stage.source is not None else ["script" if stage.scripted else "impulse"]
    flags += words_of(stage)
    shown = list(stage.transforms[:_MAX_TRANSFORMS])
    hidden = stage.transforms[_MAX_TRANSFORMS:]
    lines = [_text(0, 0, _shorten(t.name, 38), "", f"{t.name}\n{t.urn}") for t in shown]
    if not stage.transforms:
        lines.append(_text(0, 0, "passes elements on", "muted", stage.name))
    if hidden:
        lines.append(_text(0, 0, f"… and {len(hidden)} more", "muted", "\n".join(t.name for t in hidden)))
    lines += [_text(0, 0, _shorten(note, 38), "muted", note) for note in _notes(stage)]
    placed = [
        f'<g transform="translate({left + 12:.1f},{box.y + _HEADER + 18 + _LINE * number:.1f})">{line}</g>'
        for number, line in enumerate(lines)
    ]
    rounded = (
        f"M{left:.1f},{box.y + _HEADER:.1f} v{-(_HEADER - 6):.1f} q0,-6 6,-6 h{box.width - 12:.1f} q6,0 6,6 "
        f"v{_HEADER - 6:.1f} z"
    )
    return "\n".join(
        [
            f'<g class="stage{" stateful" if stage.stateful else ""}" id="{escape(stage.id)}">',
            f"<title>{escape(stage.name)}</title>",
            f'<path d="{rounded}"/>',
            f'<rect x="{left:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="6" '
            'style="fill: none"/>',
            _text(left + 12, box.y + 17, stage.id, "id"),
            _text(right - 12, box.y + 17, ", ".join(flags), "muted", anchor="end") if flags else "",
            *placed,
            "</g>",
        ]
    )


def _notes(stage: Stage) -> list[str]:
    notes = []
    if stage.states:
        notes.append("state: " + ", ".join(state for _, state in stage.states))
    if stage.timers:
        notes.append("timers: " + ", ".join(f"{t.family} ({t.domain.value} time)" for t in stage.timers))
    if stage.observed:
        notes.append("time: " + ", ".join(observer.name for observer in observers_of(stage)))
    return notes


def _draw_channel(channel: Channel, box: _Box) -> str:
    exchange = channel.routing in EXCHANGES
    colour = _COLOURS[channel.routing]
    fill = f' style="fill: {colour}"' if exchange else ""
    dash = ' stroke-dasharray="6 4"' if channel.routing is Routing.SIDE else ""
    details = [f"c{channel.index}: {channel.name}", f"coder: {channel.coder}", f"windowing: {channel.windowing}"]
    return "\n".join(
        [
            f'<g class="channel{" exchange" if exchange else ""}" id="c{channel.index}">',
            f"<title>{escape(chr(10).join(details))}</title>",
            f'<rect x="{box.x - box.width / 2:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
            f'height="{box.height:.1f}" rx="{box.height / 2:.0f}" stroke="{colour}"{dash}{fill}/>',
            _text(box.x, box.y + 17, f"{channel.routing.value} · c{channel.index}", "routing", anchor="middle"),
            _text(box.x, box.y + 32, _shorten(channel.coder or channel.name, 29), "", anchor="middle"),
            "</g>",
        ]
    )


def _draw_legend(routings: Iterable[Routing], width: float, top: float) -> tuple[list[str], float]:
    """Return swatches in as many columns as fit, and their height."""
    column = 290.0
    columns = max(1, int((width - 2 * _MARGIN) // column))
    parts, rows = [], 0
    for number, routing in enumerate(routings):
        x, y = _MARGIN + column * (number % columns), top + 22 * (number // columns)
        rows = number // columns + 1
        fill = _COLOURS[routing] if routing in EXCHANGES else "#ffffff"
        dash = ' stroke-dasharray="4 3"' if routing is Routing.SIDE else ""
        parts.append(
            f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="24" height="11" rx="5.5" fill="{fill}" '
            f'stroke="{_COLOURS[routing]}"{dash}/>'
        )
        parts.append(_text(x + 32, y, f"{routing.value}: {_MEANINGS[routing]}", "muted"))
    return parts, 22.0 * rows


def _marker(routing: Routing) -> str:
    return (
        f'<marker id="to-{routing.value}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{_COLOURS[routing]}"/></marker>'
    )


def _text(x: float, y: float, text: str, style: str, title: str = "", anchor: str = "start") -> str:
    tooltip = f"<title>{escape(title)}</title>" if title else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{tooltip}{escape(text)}</text>'


def _shorten(name: str, limit: int) -> str:
    """Shorten to `limit` characters: omit leading path segments first (they repeat), then the middle of the rest."""
    if len(name) <= limit:
        return name
    segments = name.split("/")
    kept = [segments[-1]]
    for segment in reversed(segments[:-1]):
        if len("/".join(["…", segment, *kept])) > limit:
            break
        kept.insert(0, segment)
    name = "/".join(["…", *kept]) if len(kept) < len(segments) else name
    if len(name) <= limit:
        return name
    head = (limit - 1) // 2
    return f"{name[:head]}…{name[len(name) - (limit - 1 - head) :]}"
