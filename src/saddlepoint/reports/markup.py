"""Build HTML and SVG by nested function calls.

Text is always escaped, so a name chosen by a user cannot become markup or a script.
"""

from __future__ import annotations

from html import escape

_VOID = frozenset({"link", "meta", "img", "br", "hr"})  # elements without a closing tag


class Markup(str):
    """Text that is already valid HTML.

    Only `tag`, `join`, `svg` and constants of this package create it.
    """

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | bool) -> Markup:
    """Return one element, for example `tag("p", "a < b", class_="x")`.

    Args:
        name: The element name.
        children: The content. `Markup` is inserted as it is; any other text is escaped.
        attributes: The attributes. In their names a trailing underscore is removed and the other
            underscores become hyphens: `class_`, `stroke_width`. True writes the name alone, False
            omits the attribute. Floats are written with 6 significant digits.

    Returns:
        The element, for example `<p class="x">a &lt; b</p>`.
    """
    words = [
        name,
        *(_attribute(key, value) for key, value in attributes.items() if value is not False),
    ]
    opening = f"<{' '.join(words)}>"
    return Markup(opening if name in _VOID else f"{opening}{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Concatenate the children. `Markup` is kept as it is; any other text is escaped."""
    return Markup(
        "".join(child if isinstance(child, Markup) else escape(child) for child in children)
    )


def svg(
    title: str, description: str, *children: str, width: float, height: float, class_: str = ""
) -> Markup:
    """Return a figure as an inline SVG element.

    Args:
        title: The title, for tooltips and screen readers.
        description: The data of the figure in words, for screen readers.
        children: The shapes.
        width: Width of the coordinate system. The page scales the figure to the width available.
        height: Height of the coordinate system.
        class_: CSS class of the element. Default: none.
    """
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        xmlns="http://www.w3.org/2000/svg",
        class_=class_ or False,
    )


def _attribute(key: str, value: str | float | bool) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return name
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f'{name}="{escape(text, quote=True)}"'
