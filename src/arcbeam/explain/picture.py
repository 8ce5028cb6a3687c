"""The plan as an SVG picture, standalone or as a part of a page that shows live figures in it.

Owns sizes, colours, ids and texts. Pure functions from a plan to a string; imports only `model.plan`, and `layout`,
which knows where everything is. All names come from users: they are escaped, and nothing refers to another file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from xml.sax.saxutils import escape

from arcbeam.explain.layout import PictureLayout, Point, Size, lay_out
from arcbeam.explain.words import EXCHANGES, observers_of, side_text, transform_names, words_of
from arcbeam.model.plan import Channel, Plan, Routing, Stage
from arcbeam.model.texts import visible

_STAGE_WIDTH = 280.0
_CHANNEL_WIDTH = 224.0
_GAP = Size(24.0, 46.0)
_MARGIN = 28.0
_TITLE = 30.0
_LINE = 18.0
_HEADER = 26.0
_CHANNEL_HEIGHT = 40.0
_TRANSFORMS_MAX = 14
_WIDTH_MIN = 560.0

_COLOURS = {  # On light and on dark ground.
    Routing.FORWARD: ("#64748b", "#94a3b8"),
    Routing.SPREAD: ("#0f766e", "#2dd4bf"),
    Routing.KEYED: ("#7c3aed", "#a78bfa"),
    Routing.GROUPED: ("#2563eb", "#60a5fa"),
    Routing.SIDE: ("#b45309", "#fbbf24"),
    Routing.SIDE_KEYED: ("#b45309", "#fbbf24"),
}
_MEANINGS = {
    Routing.FORWARD: "stays in its partition",
    Routing.SPREAD: "spread over all shards",
    Routing.KEYED: "values of a key to one shard",
    Routing.GROUPED: "grouped, then to the key's shard",
    Routing.SIDE: "files, read as an iterable",
    Routing.SIDE_KEYED: "exchanged, then looked up by key",
}


def _rules(dark: bool) -> str:
    ground, box, ink, muted, line, head, kept = (
        ("#0b1220", "#111a2c", "#e2e8f0", "#94a3b8", "#475569", "#1e293b", "#3b2f63")
        if dark
        else ("#f8fafc", "#ffffff", "#0f172a", "#5b6b82", "#94a3b8", "#e2e8f0", "#ddd6fe")
    )
    rules = [
        f".plan .ground {{ fill: {ground}; }}",
        f".plan text {{ fill: {ink}; }}",
        f".plan .muted {{ fill: {muted}; }}",
        f".plan .box {{ fill: {box}; stroke: {line}; }}",
        f".plan .head {{ fill: {head}; }}",
        f".plan .stateful .head {{ fill: {kept}; }}",
    ]
    for routing, colours in _COLOURS.items():
        name, colour = routing.value, colours[dark]
        rules.append(f".plan .{name}.edge, .plan .{name} > .pill {{ stroke: {colour}; }}")
        rules.append(f".plan .{name} > .pill {{ fill: {colour if routing in EXCHANGES else box}; }}")
        rules.append(f".plan .{name} > .tip {{ fill: {colour}; }}")
    rules.append(f".plan .exchange text {{ fill: {ground if dark else box}; }}")
    return "\n".join(rules)


STYLE = f"""
.plan text {{ font-family: 'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif; font-size: 11px; }}
.plan .title {{ font-size: 16px; font-weight: 600; }}
.plan .id {{ font-weight: 700; font-size: 12px; }}
.plan .routing {{ font-weight: 700; }}
.plan .box, .plan .pill {{ stroke-width: 1.2; }}
.plan .side > .pill {{ stroke-dasharray: 6 4; }}
.plan .edge {{ fill: none; stroke-width: 1.4; }}
.plan .wide {{ stroke-width: 2.8; }}
.plan .dashed {{ stroke-dasharray: 6 4; }}
{_rules(dark=False)}
@media (prefers-color-scheme: dark) {{
{_rules(dark=True)}
}}
"""
"""The stylesheet. A standalone picture contains it; a page has it in its own, so that no style is inline."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UNSAFE = re.compile(f"[<>&\"']|{_NOT_XML.pattern}")


@dataclass(frozen=True, slots=True)
class _Edge:
    """A line between a stage and a channel, by their ids."""

    start: str
    end: str
    routing: Routing
    titles: tuple[str, ...]
    dashed: bool


@dataclass(frozen=True, slots=True)
class _Mode:
    """What differs between a picture in a file and one in a page.

    Attributes:
        live: each stage and channel has a line for figures.
        prefix: of all ids, so that a page may contain several pictures.
        links: the address to which a stage leads, by its id.
    """

    live: bool = False
    prefix: str = ""
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def line(self) -> float:
        """The height of a line for figures: a channel has one, a stage two."""
        return _LINE if self.live else 0.0


def as_svg(plan: Plan) -> str:
    """Return the plan as an SVG picture, from top to bottom; full names and URNs are in the tooltips.

    Channels are vertices of the layered graph, as stages are. So each has its own space, and labels do not overlap.
    Flattens (several producers) and fan-outs are visible, too. Exchanges are filled and thick, side inputs dashed.
    """
    return _draw(plan, _Mode())


def as_live_svg(plan: Plan, prefix: str = "", links: Mapping[str, str] | None = None) -> str:
    """Return the plan as an `<svg>` element for a page, which needs `STYLE` in its stylesheet.

    Ids, each after the prefix: "s0" is the group of a stage, "c0" that of a channel, "s0-c0" and "c0-s1" are edges.
    "s0-live", "s0-more" and "c0-live" are empty `<text>` elements, for figures; see `LivePicture`. Equal plans
    have equal ids.

    Args:
        plan: what is drawn.
        prefix: of all ids.
        links: the address to which a stage leads, by its id.
    """
    return _draw(plan, _Mode(live=True, prefix=prefix, links=links or {}))


@dataclass(frozen=True, slots=True)
class LivePicture:
    """A picture whose slots are filled with new figures repeatedly.

    Attributes:
        parts: before the first slot, and after each.
        slots: the name of each, such as "s0-live", its whole id, and its other attributes.
    """

    parts: Sequence[str]
    slots: Sequence[tuple[str, str, str]]

    @classmethod
    def of(cls, svg: str, prefix: str = "") -> LivePicture:
        """Return a picture from `as_live_svg` with that prefix."""
        slots = rf'<text class="live" id="{re.escape(_safe(prefix))}([sc]\d+-(?:live|more))"([^>]*)></text>'
        found = re.split(slots, svg)
        names = zip(found[1::3], found[2::3], strict=True)
        return cls(found[::3], [(name, f"{prefix}{name}", rest) for name, rest in names])

    def filled(self, figures: Mapping[str, tuple[str, str]]) -> tuple[str, dict[str, str]]:
        """Return the picture with figures in its slots, and the elements that show them, by their ids.

        Args:
            figures: by the name of a slot: the text, and a further class of it or "".
        """
        found: dict[str, str] = {}
        for name, id, rest in self.slots:
            text, style = figures.get(name, ("", ""))
            style = _safe(f"live {style}") if style else "live"
            found[id] = f'<text class="{style}" id="{_safe(id)}"{rest}>{_safe(text)}</text>'
        slots = (*found.values(), "")
        return "".join(piece for both in zip(self.parts, slots, strict=True) for piece in both), found


def _draw(plan: Plan, mode: _Mode) -> str:
    edges = _edges(plan)
    sizes = {stage.id: Size(_STAGE_WIDTH, _height(stage) + 2 * mode.line) for stage in plan.stages}
    sizes |= {f"c{c.index}": Size(_CHANNEL_WIDTH, _CHANNEL_HEIGHT + mode.line) for c in plan.channels}
    layout = lay_out(_topological(plan, sizes), [(edge.start, edge.end) for edge in edges], _GAP)
    width = max(layout.size.width + 2 * _MARGIN, _WIDTH_MIN)
    top = _MARGIN + (0.0 if mode.live else _TITLE)
    bottom = top + layout.size.height
    routings = [routing for routing in Routing if any(c.routing is routing for c in plan.channels)]
    legend, legend_height = _draw_legend(routings, width, bottom + _MARGIN)
    height = bottom + _MARGIN + legend_height
    placed = _shifted(layout, (width - layout.size.width) / 2, top)
    title = _text(_MARGIN, _MARGIN + 10, _shorten(plan.name, 48) or "plan", "title", plan.name)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plan" width="{width:.0f}" height="{height:.0f}" '
        # What is an image has no links inside.
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="{"group" if mode.links else "img"}">',
        f"<title>{_safe(plan.name)}</title>",
        *([] if mode.live else [f"<style>{STYLE}</style>"]),
        "<defs>",
        *(_marker(routing, mode) for routing in routings),
        "</defs>",
        *([] if mode.live else ['<rect class="ground" width="100%" height="100%"/>', title]),
        *(_draw_edge(edge, route, mode) for edge, route in zip(edges, placed.routes, strict=True)),
        *(
            _linked(_draw_stage(stage, placed.corners[stage.id], sizes[stage.id], mode), mode.links.get(stage.id))
            for stage in plan.stages
        ),
        *(_draw_channel(c, placed.corners[f"c{c.index}"], sizes[f"c{c.index}"], mode) for c in plan.channels),
        *legend,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _edges(plan: Plan) -> list[_Edge]:
    edges = []
    for channel in plan.channels:
        name = f"c{channel.index}"
        for producer in channel.producers:
            edges.append(_Edge(producer, name, channel.routing, (f"{producer} writes {name}",), dashed=False))
    for stage in plan.stages:
        if stage.source is not None:
            title, routing = f"{stage.id} reads c{stage.source}", plan.channels[stage.source].routing
            edges.append(_Edge(f"c{stage.source}", stage.id, routing, (title,), dashed=False))
        sides: dict[int, list[str]] = defaultdict(list)
        for side in stage.side_inputs:
            sides[side.channel].append(f"{stage.id} reads c{side.channel} {side_text(side, transform_names(stage))}")
        for index, titles in sides.items():
            edges.append(_Edge(f"c{index}", stage.id, plan.channels[index].routing, tuple(titles), dashed=True))
    return edges


def _topological(plan: Plan, sizes: dict[str, Size]) -> dict[str, Size]:
    """Return the sizes in topological order: a channel follows the last of its producers."""
    order = {stage.id: number for number, stage in enumerate(plan.stages)}
    last = {f"c{c.index}": max((order[p] for p in c.producers), default=-1) + 0.5 for c in plan.channels}
    return dict(sorted(sizes.items(), key=lambda item: {**order, **last}[item[0]]))


def _shifted(layout: PictureLayout, x: float, y: float) -> PictureLayout:
    corners = {name: Point(corner.x + x, corner.y + y) for name, corner in layout.corners.items()}
    return PictureLayout(corners, tuple(tuple(Point(p.x + x, p.y + y) for p in r) for r in layout.routes), layout.size)


def _height(stage: Stage) -> float:
    lines = min(len(stage.transforms), _TRANSFORMS_MAX + 1) + len(_notes(stage))
    return _HEADER + 12 + _LINE * max(lines, 1)


def _draw_edge(edge: _Edge, route: Sequence[Point], mode: _Mode) -> str:
    commands = [f"M{route[0].x:.1f},{route[0].y:.1f}"]
    for number, (x, y) in enumerate(route[1:], start=1):
        before = route[number - 1]
        if number % 2:
            commands.append(f"L{x:.1f},{y:.1f}")
        else:
            bend = 0.6 * (y - before.y)
            commands.append(f"C{before.x:.1f},{before.y + bend:.1f} {x:.1f},{y - bend:.1f} {x:.1f},{y:.1f}")
    classes = ["edge", edge.routing.value, *(["wide"] if edge.routing in EXCHANGES else [])]
    classes += ["dashed"] if edge.dashed else []
    return (
        f'<path class="{" ".join(classes)}" id="{_safe(f"{mode.prefix}{edge.start}-{edge.end}")}" '
        f'd="{" ".join(commands)}" marker-end="url(#{_safe(mode.prefix)}to-{edge.routing.value})">'
        f"<title>{_safe(chr(10).join(edge.titles))}</title></path>"
    )


def _draw_stage(stage: Stage, corner: Point, size: Size, mode: _Mode) -> str:
    left, right = corner.x, corner.x + size.width
    flags = [] if stage.source is not None else ["script" if stage.scripted else "impulse"]
    flags += words_of(stage)
    shown = list(stage.transforms[:_TRANSFORMS_MAX])
    hidden = stage.transforms[_TRANSFORMS_MAX:]
    lines = [(_shorten(t.name, 38), "", f"{t.name}\n{t.urn}") for t in shown]
    if not stage.transforms:
        lines.append(("passes elements on", "muted", stage.name))
    if hidden:
        lines.append((f"… and {len(hidden)} more", "muted", "\n".join(t.name for t in hidden)))
    lines += [(_shorten(note, 38), "muted", note) for note in _notes(stage)]
    first = corner.y + _HEADER + 18
    rounded = (
        f"M{left:.1f},{corner.y + _HEADER:.1f} v{-(_HEADER - 6):.1f} q0,-6 6,-6 h{size.width - 12:.1f} q6,0 6,6 "
        f"v{_HEADER - 6:.1f} z"
    )
    return "\n".join(
        [
            f'<g class="stage{" stateful" if stage.stateful else ""}" id="{_safe(mode.prefix + stage.id)}">',
            f"<title>{_safe(stage.name)}</title>",
            f'<rect class="box" x="{left:.1f}" y="{corner.y:.1f}" width="{size.width:.1f}" '
            f'height="{size.height:.1f}" rx="6"/>',
            f'<path class="head" d="{rounded}"/>',
            _text(left + 12, corner.y + 17, stage.id, "id"),
            *([_text(right - 12, corner.y + 17, ", ".join(flags), "muted", anchor="end")] if flags else []),
            *(_text(left + 12, first + _LINE * n, *line) for n, line in enumerate(lines)),
            *_slot(left + 12, corner.y + size.height - 12 - mode.line, f"{stage.id}-live", "start", mode),
            *_slot(left + 12, corner.y + size.height - 12, f"{stage.id}-more", "start", mode),
            "</g>",
        ]
    )


def _linked(stage: str, address: str | None) -> str:
    return f'<a href="{_safe(address)}">\n{stage}\n</a>' if address else stage


def _notes(stage: Stage) -> list[str]:
    notes = []
    if stage.states:
        notes.append("state: " + ", ".join(state for _, state in stage.states))
    if stage.timers:
        notes.append("timers: " + ", ".join(f"{t.family} ({t.follows})" for t in stage.timers))
    if stage.observed:
        notes.append("time: " + ", ".join(observer.name for observer in observers_of(stage)))
    return notes


def _draw_channel(channel: Channel, corner: Point, size: Size, mode: _Mode) -> str:
    name, middle = f"c{channel.index}", corner.x + size.width / 2
    details = [f"{name}: {channel.name}", f"coder: {channel.coder}", f"windowing: {channel.windowing}"]
    exchange = " exchange" if channel.routing in EXCHANGES else ""
    return "\n".join(
        [
            f'<g class="channel {channel.routing.value}{exchange}" id="{_safe(mode.prefix + name)}">',
            f"<title>{_safe(chr(10).join(details))}</title>",
            f'<rect class="pill" x="{corner.x:.1f}" y="{corner.y:.1f}" width="{size.width:.1f}" '
            f'height="{size.height:.1f}" rx="{_CHANNEL_HEIGHT / 2:.0f}"/>',
            _text(middle, corner.y + 17, f"{channel.routing.value} · {name}", "routing", anchor="middle"),
            _text(middle, corner.y + 32, _shorten(channel.coder or channel.name, 29), "", anchor="middle"),
            *_slot(middle, corner.y + 48, f"{name}-live", "middle", mode),
            "</g>",
        ]
    )


def _slot(x: float, y: float, name: str, anchor: str, mode: _Mode) -> list[str]:
    """Return the empty text in which a page shows figures; nothing in a file."""
    if not mode.live:
        return []
    id = _safe(f"{mode.prefix}{name}")
    return [f'<text class="live" id="{id}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"></text>']


def _draw_legend(routings: Iterable[Routing], width: float, top: float) -> tuple[list[str], float]:
    """Return swatches in as many columns as fit, and their height."""
    column = 290.0
    columns = max(1, int((width - 2 * _MARGIN) // column))
    parts, rows = [], 0
    for number, routing in enumerate(routings):
        x, y = _MARGIN + column * (number % columns), top + 22 * (number // columns)
        rows = number // columns + 1
        swatch = f'<rect class="pill" x="{x:.1f}" y="{y - 9:.1f}" width="24" height="11" rx="5.5"/>'
        parts.append(f'<g class="{routing.value}">{swatch}</g>')
        parts.append(_text(x + 32, y, f"{routing.value}: {_MEANINGS[routing]}", "muted"))
    return parts, 22.0 * rows


def _marker(routing: Routing, mode: _Mode) -> str:
    return (
        f'<marker class="{routing.value}" id="{_safe(mode.prefix)}to-{routing.value}" viewBox="0 0 8 8" refX="7" '
        'refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto">'
        '<path class="tip" d="M0,0 L8,4 L0,8 z"/></marker>'
    )


def _text(x: float, y: float, text: str, style: str, title: str = "", anchor: str = "start") -> str:
    tooltip = f"<title>{_safe(title)}</title>" if title else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{tooltip}{_safe(text)}</text>'


def _safe(text: str) -> str:
    """Escape for elements and attributes; also characters that a browser would obey or XML cannot contain."""
    text = visible(text)
    if _UNSAFE.search(text) is None:
        return text  # a live picture has many of these
    return escape(_NOT_XML.sub("\ufffd", text), {'"': "&quot;", "'": "&#39;"})


_SHOWN_CHARACTERS_MIN: Final = 6
"""A shorter beginning of a path's segment is omitted."""


def _shorten(name: str, limit: int) -> str:
    """Shorten to `limit` characters: omit leading path segments first (they repeat), then the middle of the rest."""
    if len(name) <= limit:
        return name
    segments = name.split("/")
    kept = [segments[-1]]
    for segment in reversed(segments[:-1]):
        if len("/".join(["…", segment, *kept])) > limit:
            # Its beginning says more than nothing.
            room = limit - len("/".join(["…", "…", *kept]))
            if room >= _SHOWN_CHARACTERS_MIN:
                kept.insert(0, f"{segment[:room]}…")
            break
        kept.insert(0, segment)
    name = "/".join(["…", *kept]) if len(kept) < len(segments) else name
    if len(name) <= limit:
        return name
    head = (limit - 1) // 2
    return f"{name[:head]}…{name[len(name) - (limit - 1 - head) :]}"
