"""Token forms: tokens with the same surface form (no white space or space marker around it, lower case) are merged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

SPACE_MARKERS = " \t\r\n\u0120\u010a\u0109\u2581"
"""White space, and its byte-level (Ġ, Ċ, ĉ) and SentencePiece (▁) markers."""
KINDS = ("word", "letter", "number", "symbol", "space")


def surface_form(text: str) -> str:
    """`ĠWait`, ` wait` and `wait\\n` -> `wait`; a blank token is unchanged."""
    return text.strip(SPACE_MARKERS).lower() or text


def is_blank(form: str) -> bool:
    return not form.strip(SPACE_MARKERS).strip()


def kind(form: str) -> str:
    """Classify a form by its characters, to separate natural language from mathematics."""
    if is_blank(form):
        return "space"
    if all(character.isalpha() or character in "'’-" for character in form) and any(map(str.isalpha, form)):
        return "word" if len(form) > 1 else "letter"
    return "number" if form.replace(".", "").replace(",", "").isdigit() else "symbol"


@dataclass(frozen=True, slots=True)
class FormTable:
    """Statistics of token forms: F forms, C contexts, K thresholds."""

    forms: list[str]
    count_F: np.ndarray
    significant_FCK: np.ndarray
    """Occurrences with |D| > tau."""
    size_FCK: np.ndarray
    """sum|D| over these occurrences, in nats."""

    @property
    def rho_FCK(self) -> np.ndarray:
        return self.significant_FCK / np.maximum(self.count_F, 1)[:, None, None]

    @property
    def mean_FCK(self) -> np.ndarray:
        """Mean |D| over the significant occurrences."""
        return self.size_FCK / np.maximum(self.significant_FCK, 1)

    def over(self, limit: int, *, blanks: bool = False) -> "FormTable":
        """The forms that occur more than `limit` times; blank ones only with `blanks`."""
        wanted = np.array([blanks or not is_blank(form) for form in self.forms], bool)
        kept = np.flatnonzero((self.count_F > limit) & wanted)
        arrays = (values[kept] for values in (self.count_F, self.significant_FCK, self.size_FCK))
        return FormTable([self.forms[place] for place in kept], *arrays)

    def ranked(self, context: int, tau: int) -> list[int]:
        """Indices of the forms by rho in descending order; ties by frequency, then alphabetically."""
        rho = self.rho_FCK[:, context, tau]
        return sorted(range(len(self.forms)), key=lambda f: (-rho[f], -self.count_F[f], self.forms[f]))


def form_table(texts: Sequence[str], count_V: np.ndarray, counts_CVK: np.ndarray, sizes_CVK: np.ndarray) -> FormTable:
    """Merge token ids into forms; counts and sizes by largest threshold exceeded become cumulative per threshold."""
    present = np.flatnonzero(count_V)
    names = [surface_form(texts[place]) for place in present]
    forms = sorted(set(names))
    place_of = {form: place for place, form in enumerate(forms)}
    owner = np.array([place_of[name] for name in names], np.intp)
    # Token ids in the order of their forms: the sums of a form are sums of neighbours.
    order = np.argsort(owner, kind="stable")
    first, chosen = np.searchsorted(owner[order], np.arange(len(forms))), present[order]
    merged = []
    for by_level in (counts_CVK, sizes_CVK):
        out = np.add.reduceat(by_level[:, chosen].transpose(1, 0, 2), first)
        merged.append(np.cumsum(out[..., ::-1], axis=-1)[..., ::-1])
    return FormTable(forms, np.add.reduceat(count_V[chosen], first), merged[0], merged[1])


def shared(lists: Mapping[str, Sequence[str]]) -> tuple[dict[str, dict[str, int]], int]:
    """The number of common forms for every pair of contexts, and the number of forms common to all contexts."""
    sets = {name: set(forms) for name, forms in lists.items()}
    table = {name: {name: len(forms)} for name, forms in sets.items()}
    for one, other in combinations(sets, 2):
        table[one][other] = table[other][one] = len(sets[one] & sets[other])
    ordered = {one: {other: table[one][other] for other in sets} for one in sets}
    return ordered, len(set.intersection(*sets.values())) if sets else 0
