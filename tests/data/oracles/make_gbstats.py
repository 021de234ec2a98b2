"""Writes gbstats.json: sequential intervals and ratio variances as gbstats computes them.

gbstats 0.8.0 (growthbook, MIT) needs numpy 1 and pandas 1, so it runs in an environment of its own:
`pip install gbstats==0.8.0 && python make_gbstats.py > gbstats.json`.
"""

import itertools
import json
import sys

import numpy as np
from gbstats.frequentist.tests import SequentialConfig, SequentialTwoSidedTTest
from gbstats.models.statistics import RatioStatistic, SampleMeanStatistic


def sample(values):
    return SampleMeanStatistic(n=len(values), sum=float(values.sum()), sum_squares=float((values**2).sum()))


rng = np.random.default_rng(20)
intervals, ratios = [], []
for n, planned, alpha in itertools.product((100, 737, 5000), (100, 500, 5000), (0.00625, 0.05, 0.2)):
    arms = [sample(rng.normal(mean, 1.0, n)) for mean in (1.0, 1.3)]
    config = SequentialConfig(alpha=alpha, sequential_tuning_parameter=planned, difference_type="absolute")
    test = SequentialTwoSidedTTest(*arms, config)
    lower, upper = test.confidence_interval
    interval = {"num_units": 2 * n, "planned_units": planned, "level": alpha, "variance": float(test.variance)}
    interval |= {"rho": float(test.rho), "estimate": float(test.point_estimate)}
    intervals.append(interval | {"lower": float(lower), "upper": float(upper)})
for n in (3, 20, 400):
    d = rng.uniform(0.2, 2.0, n)
    a = d * rng.normal(0.5, 0.2, n)
    products = float((a * d).sum())
    stat = RatioStatistic(n=n, m_statistic=sample(a), d_statistic=sample(d), m_d_sum_of_products=products)
    moments = {"num_units": n, "sum_a": float(a.sum()), "sum_d": float(d.sum()), "sum_aa": float((a**2).sum())}
    moments |= {"sum_ad": products, "sum_dd": float((d**2).sum())}
    ratios.append({"moments": moments, "ratio": float(stat.mean), "variance": float(stat.variance)})
json.dump({"source": "gbstats 0.8.0 (MIT)", "intervals": intervals, "ratios": ratios}, sys.stdout, indent=1)
