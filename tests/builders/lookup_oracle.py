"""n-gram lookup written apart: the longest suffix, found prefix by prefix."""

from __future__ import annotations


def longest_by_prefixes(tokens: list[int], shortest: int, longest: int, count: int) -> list[int]:
    """`_find_longest_matched_ngram_and_propose_tokens` of vLLM 0.32 in our own words: KMP over the reversed tokens."""
    total = len(tokens)
    if total < shortest:
        return []
    reverse = tokens[::-1]
    prefixes = [0] * longest
    found, position, previous, i = 0, 0, 0, 1
    while i < total:
        if reverse[previous] == reverse[i]:
            previous += 1
            if previous >= found:
                found, position = previous, i
            if i < longest:
                prefixes[i] = previous
            if previous == longest:
                previous = prefixes[longest - 1]
            i += 1
        elif previous:
            previous = prefixes[previous - 1]
        else:
            i += 1
    if found < shortest:
        return []
    start = total - 1 - position + found
    return tokens[start : start + min(count, total - start)]
