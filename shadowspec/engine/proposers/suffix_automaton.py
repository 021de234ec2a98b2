"""How often every string of up to `depth` tokens occurs in some texts, and its most frequent next token.

A suffix automaton (Blumer et al. 1985) over several texts, built token by token.  Its states are the sets of strings
that occur at the same places; the links of a state lead to ever shorter suffixes.  Beside the automaton itself, which
costs amortised O(1) a token, each state keeps how often its strings occur, when they did so last, and the likeliest
next token: the most frequent one, of equals the one seen last.  These are kept for strings of up to `depth` tokens, at
the cost of the links among the last `depth` tokens: at most `depth` a token, mostly a handful.

The oldest text can be removed.  Its states stay with a count of 0, as if they did not exist, so a caller that removes
much must rebuild the automaton in time.
"""

from __future__ import annotations

from collections.abc import Sequence

ROOT = 0
NOTHING = -1  # no likeliest token, no link


class SuffixAutomaton:
    """The lists are indexed by state; `state` and `length` are of the longest suffix of the text that is growing.

    That suffix has at most `depth` - 1 tokens, so that its next token is still counted.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.following: list[dict[int, int]] = [{}]  # the state that each next token leads to
        self.links = [NOTHING]
        self.longest = [0]  # tokens of the longest string; the shortest has one more than the link's longest
        self.counts = [0]
        self.likeliest = [NOTHING]
        self._latest = [0]  # number of the token with which the strings occurred last
        self._num_tokens = 0
        self.begin()

    def begin(self) -> None:
        """Begin another text: no string continues from the one before."""
        self._last = ROOT
        self.state, self.length = ROOT, 0

    def append(self, token: int) -> None:
        """Add a token to the text that is growing."""
        self._last = self._extend(token)
        self._num_tokens += 1
        following, links, counts, likeliest, latest = (
            self.following, self.links, self.counts, self.likeliest, self._latest,
        )  # fmt: skip
        before = self.state
        after = following[before][token]
        at = after
        while at > ROOT:
            counts[at] += 1
            latest[at] = self._num_tokens
            at = links[at]
        at = before
        while at > ROOT:
            best = likeliest[at]
            if best == NOTHING or counts[following[at][token]] >= counts[following[at][best]]:
                likeliest[at] = token
            at = links[at]
        self.state, self.length = self._shorten(after, self.length + 1)

    def remove(self, text: Sequence[int]) -> None:
        """Take out the oldest text, which must be in."""
        following, links, counts, likeliest = self.following, self.links, self.counts, self.likeliest
        before, length = ROOT, 0
        for token in text:
            after = following[before][token]
            at = after
            while at > ROOT:
                counts[at] -= 1
                at = links[at]
            at = before
            while at > ROOT:
                if likeliest[at] == token:
                    likeliest[at] = self._most_frequent(at)
                at = links[at]
            before, length = self._shorten(after, length + 1)

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        """From the longest suffix of a text that occurs here to the longest one after another token of that text.

        A string that occurred only in a removed text still occurs; it has no known next token.

        Args:
            state, length: of that suffix; (ROOT, 0) of an empty text.

        Returns:
            State and length, of at most `depth` - 1 tokens.
        """
        while (after := self.following[state].get(token)) is None:
            if state == ROOT:
                return ROOT, 0
            state = self.links[state]
            length = self.longest[state]
        return self._shorten(after, length + 1)

    def _shorten(self, state: int, length: int) -> tuple[int, int]:
        """The state of the suffix of `depth` - 1 tokens, given that of `length`, which is at most one more."""
        if length < self.depth:
            return state, length
        link = self.links[state]
        return (link if self.longest[link] == length - 1 else state), length - 1

    def _most_frequent(self, state: int) -> int:
        counts, latest = self.counts, self._latest
        best, rank = NOTHING, (0, 0)
        for token, after in self.following[state].items():
            if counts[after] and (counts[after], latest[after]) > rank:
                best, rank = token, (counts[after], latest[after])
        return best

    def _extend(self, token: int) -> int:
        """The state of the whole text with another token."""
        following, links, longest = self.following, self.links, self.longest
        last = self._last
        known = following[last].get(token)
        if known is not None:  # the text has been the beginning of another one so far
            return known if longest[known] == longest[last] + 1 else self._split(last, known, token)
        state = self._new_state(longest[last] + 1, {})
        at = last
        while at != NOTHING and token not in following[at]:
            following[at][token] = state
            at = links[at]
        if at == NOTHING:
            links[state] = ROOT
        else:
            known = following[at][token]
            links[state] = known if longest[known] == longest[at] + 1 else self._split(at, known, token)
        return state

    def _split(self, before: int, known: int, token: int) -> int:
        """Move the strings of `known` that `before` leads to into a new state: they occur here, its longer ones do
        not."""
        following, links = self.following, self.links
        state = self._new_state(self.longest[before] + 1, dict(following[known]))
        links[state] = links[known]
        self.counts[state] = self.counts[known]
        self.likeliest[state] = self.likeliest[known]
        self._latest[state] = self._latest[known]
        links[known] = state
        at = before
        while at != NOTHING and following[at].get(token) == known:
            following[at][token] = state
            at = links[at]
        return state

    def _new_state(self, longest: int, following: dict[int, int]) -> int:
        self.following.append(following)
        self.links.append(ROOT)
        self.longest.append(longest)
        self.counts.append(0)
        self.likeliest.append(NOTHING)
        self._latest.append(0)
        return len(self.links) - 1
