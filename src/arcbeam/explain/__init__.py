"""Representations of a `model.plan.Plan` for people and programs. Pure functions that return a string or a dict."""

from arcbeam.explain.picture import STYLE, LivePicture, as_live_svg, as_svg
from arcbeam.explain.record import plan_of, plan_record
from arcbeam.explain.text import as_json, as_text

__all__ = ["STYLE", "LivePicture", "as_json", "as_live_svg", "as_svg", "as_text", "plan_of", "plan_record"]
