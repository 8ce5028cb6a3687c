"""The view in memory is an ordered map, also during scans."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from arcbeam.testing.views import MemoryView

_KEYS = st.binary(max_size=2)
_ACTS = st.one_of(
    st.tuples(st.just("put"), _KEYS, st.binary(max_size=1)),
    st.tuples(st.just("delete"), _KEYS),
    st.tuples(st.just("scan"), _KEYS, st.none() | _KEYS),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_ACTS, max_size=40))
def test_view_is_an_ordered_map(acts: list[tuple]) -> None:
    view, model = MemoryView(), {}
    for act in acts:
        match act:
            case ("put", key, value):
                view.put(key, value)
                model[key] = value
            case ("delete", key):
                view.delete(key)
                model.pop(key, None)
            case ("scan", start, end):
                expected = [(k, v) for k, v in sorted(model.items()) if k >= start and (end is None or k < end)]
                assert list(view.scan(start, end)) == expected
        assert all(view.get(key) == value for key, value in model.items())
    assert view.snapshot() == model


def test_many_keys_may_be_put_in_any_order() -> None:
    keys = [(i * 7919 % 5000).to_bytes(4, "big") for i in range(5000)]
    view = MemoryView()
    for i, key in enumerate(keys):
        view.put(key, b"")
        if i % 1000 == 0:
            assert next(view.scan(b""))[0] == min(keys[: i + 1])
    view.put(b"\0\0\0\0\0", b"late")
    assert [key for key, _ in view.scan(b"")] == sorted([*keys, b"\0\0\0\0\0"])


def test_rows_may_change_during_a_scan() -> None:
    view = MemoryView({bytes((i,)): b"" for i in range(100)})
    seen = []
    for key, _ in view.scan(b""):
        seen.append(key)
        view.delete(key)
        view.put(b"\xff" + key, b"")
        if len(seen) == 100:
            break
    assert seen == [bytes((i,)) for i in range(100)]
    assert len(view) == 100


def test_keys_that_come_one_by_one_divide_a_block() -> None:
    view, keys = MemoryView(), {i.to_bytes(2, "big") for i in range(0, 8000, 4)}
    for key in keys:
        view.put(key, b"")
    for i in range(1, 1000):  # each scan arranges one key
        key = i.to_bytes(2, "big")
        keys.add(key)
        view.put(key, b"")
        assert next(view.scan(key)) == (key, b"")
    assert [key for key, _ in view.scan(b"")] == sorted(keys)


def test_scan_passes_over_many_deleted_keys() -> None:
    keys = [i.to_bytes(2, "big") for i in range(3000)]
    view = MemoryView(dict.fromkeys(keys, b""))
    assert len(list(view.scan(b""))) == 3000
    assert [next(view.scan(key))[0] for key in keys] == keys
    for key in keys[:2000]:
        view.delete(key)
    assert [key for key, _ in view.scan(b"")] == keys[2000:]
    assert [key for key, _ in view.scan(keys[500], keys[2001])] == keys[2000:2001]
