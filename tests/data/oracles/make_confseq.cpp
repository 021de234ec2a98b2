// Figures of confseq 0.0.11 (MIT) for confseq.json: the log of its two-sided beta-binomial mixture.
//
// Build beside confseq's src/confseq/uniform_boundaries.h with Boost's headers and print one line per case.
// With g = p, h = 1 - p and v = n g h, its Beta has the shapes r / h (successes) and r / g (failures); v_opt is
// chosen so that r = p, which makes them p / (1 - p) and 1.

#include <cmath>
#include <cstdio>

#include "uniform_boundaries.h"

int main() {
  const double alpha = 0.05;
  const double probabilities[] = {0.5, 0.9, 0.95, 0.99};
  const int totals[] = {1, 20, 150, 1000};
  for (double p : probabilities) {
    const double rho = p + p * (1.0 - p);
    const double v_opt = rho * (2.0 * std::log(1.0 / alpha) + std::log(1.0 + 2.0 * std::log(1.0 / alpha)));
    const confseq::BetaBinomialMixture mixture(v_opt, alpha, p, 1.0 - p, false);
    for (int total : totals) {
      for (int step = 0; step <= 4; ++step) {
        const int count = total * step / 4;
        const double s = count - total * p;
        std::printf("%.17g %d %d %.17g\n", p, count, total, mixture.log_superMG(s, total * p * (1.0 - p)));
      }
    }
  }
}
