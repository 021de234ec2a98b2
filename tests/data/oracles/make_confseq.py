"""Writes confseq.json: betting capitals and the beta-binomial mixture as confseq computes them.

confseq 0.0.11 (MIT).  Its Python part runs from its sources in an environment with numpy, scipy, matplotlib and
multiprocess; the mixture is C++ (`make_confseq.cpp`, g++ with Boost's headers), of which the output is read here:
`./make_confseq | PYTHONPATH=.../confseq/src python make_confseq.py > confseq.json`.
"""

import json
import sys

import numpy as np
from confseq.betting import diversified_betting_mart

FRACTIONS, WEIGHTS = (0.1, 0.3, 0.6, 0.95), (0.15, 0.2, 0.25, 0.4)


def bets(fraction, worst):
    return lambda x, m: np.full(len(x), fraction / worst(m))


rng, capitals = np.random.default_rng(21), []
for mean in (0.1, 0.4, 0.9):
    values = rng.beta(2.0, 2.0, 40).round(6)
    for side, theta in (("lower", 1), ("upper", 0)):
        path = diversified_betting_mart(
            values,
            mean,
            [bets(fraction, lambda m: m) for fraction in FRACTIONS],
            [bets(fraction, lambda m: 1.0 - m) for fraction in FRACTIONS],
            lambdas_weights=WEIGHTS,
            theta=theta,
            trunc_scale=1,
        )
        case = {"side": side, "mean": mean, "values": values.tolist(), "capital": path.tolist()}
        capitals.append(case)
mixtures = []
for line in sys.stdin:
    probability, count, total, log = line.split()
    mixtures.append({"probability": float(probability), "count": int(count), "total": int(total), "log": float(log)})
json.dump({"source": "confseq 0.0.11 (MIT)", "capitals": capitals, "mixtures": mixtures}, sys.stdout, indent=1)
