"""HTML and SVG as nested calls; text is escaped by construction, so no name a user chose can become code."""

from __future__ import annotations

from html import escape

_VOID = frozenset({"link", "meta", "img", "br", "hr"})


class Markup(str):
    """Text that is HTML already. Only `tag`, `join` and our own constants make it."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | bool) -> Markup:
    """`tag("p", "a < b", class_="x")` -> `<p class="x">a &lt; b</p>`. Children that are no `Markup` are escaped.

    In attribute names a trailing underscore falls and others become hyphens: `class_`, `stroke_width`. True writes the name alone,
    False nothing.
    """
    words = [
        name,
        *(_attribute(key, value) for key, value in attributes.items() if value is not False),
    ]
    opening = f"<{' '.join(words)}>"
    return Markup(opening if name in _VOID else f"{opening}{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    return Markup(
        "".join(child if isinstance(child, Markup) else escape(child) for child in children)
    )


def _attribute(key: str, value: str | float | bool) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return name
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f'{name}="{escape(text, quote=True)}"'
