"""Formulas as MathML, which browsers draw without a script: `mathml("w ← w + η_s Σ p_k Δ_k")`.

The formulas of the methods are Unicode text. `x_k`, `x_{k,i}`, `x²` and `x^{2/3}` are scripts, `a/b` without spaces is
a fraction, `a / b` with spaces stays in the line, words of two letters or more are text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

OVER, UNDER = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵀ", "₀₁₂₃₄₅₆₇₈₉"
PLAIN = str.maketrans(OVER + UNDER, "0123456789−T0123456789")
PAIRS = {"(": ")", "[": "]", "{": "}", "⌊": "⌋"}
TOKEN = re.compile(rf"\s+|[A-Za-z]{{2,}}(?:-[a-z]+)*|\d+(?:\.\d+)?|[{OVER}]+|[{UNDER}]+|.\u0304?", re.S)
GAPS = {"word": "0.35em", "product": "0.17em"}


@dataclass(frozen=True)
class Item:
    """A piece of MathML.

    kind: word, operator, symbol, or group (within brackets). inner: a group without its brackets.
    """

    text: str
    kind: str
    inner: str = ""


def mathml(formula: str) -> str:
    """The formula as blocks of MathML, one for each part after `;` and two spaces."""
    blocks = [Formula(part.strip()).whole() for part in formula.split(";  ")]
    return "\n".join(
        f'<math display="block" alttext="{escape(part.strip())}"><mrow>{block}</mrow></math>'
        for part, block in zip(formula.split(";  "), blocks, strict=True)
    )


class Formula:
    """A formula while it is read, from left to right."""

    def __init__(self, text: str) -> None:
        self.tokens, self.at = TOKEN.findall(text), 0

    def whole(self) -> str:
        """All of it; a bracket without its partner is an operator."""
        texts = []
        while self.next:
            texts.append(self.row(""))
            if self.next:
                texts.append(f"<mo>{escape(self.take())}</mo>")
        return "".join(texts)

    @property
    def next(self) -> str:
        """The token to read; empty at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        """Read a token."""
        self.at += 1
        return self.tokens[self.at - 1]

    def row(self, end: str) -> str:
        """Pieces up to a closing bracket, with the spaces that the text has between words and factors."""
        texts: list[str] = []
        last: Item | None = None
        spaced = False
        while self.next and self.next != end and not (end == "" and self.next in PAIRS.values()):
            if self.next.isspace():
                self.take()
                spaced = True
                continue
            item = self.fraction()
            if last and spaced and "operator" not in (last.kind, item.kind):
                gap = GAPS["word" if "word" in (last.kind, item.kind) else "product"]
                texts.append(f'<mspace width="{gap}"/>')
            texts.append(item.text)
            last, spaced = item, False
        return "".join(texts)

    def fraction(self) -> Item:
        """A piece, or two with a slash between them and no spaces."""
        above = self.scripted()
        after = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else " "
        if self.next != "/" or after.isspace() or above.kind == "operator":
            return above
        self.take()
        below = self.scripted()
        halves = (f"<mrow>{half.inner or half.text}</mrow>" for half in (above, below))
        return Item(f"<mfrac>{''.join(halves)}</mfrac>", "symbol")

    def scripted(self) -> Item:
        """A piece with its scripts; a name with the brackets that follow it is one piece."""
        base = self.single()
        under = over = ""
        while self.next and (self.next in "_^" or self.next[0] in OVER + UNDER):
            mark = self.take()
            if mark == "_":
                under = self.script()
            elif mark == "^":
                over = self.script()
            elif mark[0] in UNDER:
                under = f"<mn>{mark.translate(PLAIN)}</mn>"
            else:
                over = f"<mrow>{''.join(map(leaf, mark.translate(PLAIN)))}</mrow>"
        if under or over:
            base = Item(scripts(base, under, over), "symbol" if base.kind == "group" else base.kind)
        if base.kind in ("symbol", "word") and self.next == "(":
            group = self.single()
            return Item(f"<mrow>{base.text}{group.text}</mrow>", "symbol")
        return base

    def script(self) -> str:
        """What follows `_` or `^`: a group in braces, or one token."""
        if self.next != "{":
            return f"<mrow>{leaf(self.take())}</mrow>"
        self.take()
        inner = self.row("}")
        self.take()
        return f"<mrow>{inner}</mrow>"

    def single(self) -> Item:
        """A token, a root or a group in brackets."""
        token = self.take()
        if token == "√":
            return Item(f"<msqrt>{self.scripted().text}</msqrt>", "symbol")
        if token in PAIRS:
            inner = self.row(PAIRS[token])
            close = self.take() if self.next else ""
            fenced = f"<mrow><mo>{token}</mo>{inner}<mo>{close}</mo></mrow>"
            return Item(fenced, "group", inner)
        if len(token) > 1 and token[:2].isascii() and token[0].isalpha():
            return Item(leaf(token), "word")
        return Item(leaf(token), "symbol" if token[0].isalnum() else "operator")


def scripts(base: Item, under: str, over: str) -> str:
    """A piece with scripts; those of a sum go below it."""
    if under and over:
        return f"<msubsup>{base.text}{under}{over}</msubsup>"
    if over:
        return f"<msup>{base.text}{over}</msup>"
    tag = "munder" if "∑" in base.text else "msub"
    return f"<{tag}>{base.text}{under}</{tag}>"


def leaf(token: str) -> str:
    """One token as an element."""
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token.endswith("\u0304"):
        return f'<mover accent="true"><mi>{token[0]}</mi><mo stretchy="false">¯</mo></mover>'
    if token == "ḡ":
        return '<mover accent="true"><mi>g</mi><mo stretchy="false">¯</mo></mover>'
    if token == "Σ":
        return '<mo movablelimits="false">∑</mo>'
    if len(token) > 1:
        return f"<mtext>{escape(token)}</mtext>"
    if token.isalpha():
        return f"<mi>{token}</mi>"
    return f'<mo stretchy="false">{escape(token)}</mo>' if token in "‖|" else f"<mo>{escape(token)}</mo>"
