// The beta distribution by way of two gamma distributions.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/beta.h"

#include <cmath>

// Try t of gamma variable g uses blocks 2 (kTries g + t) (a normal number) and the one behind it (a
// uniform one); the blocks behind those of both variables hold what small shapes need. Which blocks
// are used is a matter of the key alone.

namespace tutti::internal {
namespace {

/// A try fails in at most one of twenty cases, whatever the shape.
constexpr std::uint64_t kTries = 64;

/// Uniform in (0, 1], from block `block` of the stream.
double uniform_of_block(const RandomStream& random, std::uint64_t block) {
  return 1.0 - random.uniform64(2 * block);
}

/// Gamma of a shape of at least 1.
double large_gamma(const RandomStream& random, std::uint64_t variable, double shape) {
  const double d = shape - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  for (std::uint64_t t = 0; t < kTries; ++t) {
    const std::uint64_t block = 2 * (kTries * variable + t);
    const double x = random.normal(block);
    const double root = 1.0 + c * x;
    if (root <= 0.0) continue;
    const double v = root * root * root;
    if (std::log(uniform_of_block(random, block + 1)) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return d * v;
    }
  }
  return d;  // about once in 20^64 calls: the middle
}

/// Logarithm of a gamma variable. Small shapes give numbers too small for a double: G(shape) is
/// G(shape + 1) * U^(1 / shape).
double log_gamma_variable(const RandomStream& random, std::uint64_t variable, double shape) {
  if (shape >= 1.0) return std::log(large_gamma(random, variable, shape));
  const double u = uniform_of_block(random, 4 * kTries + variable);
  return std::log(large_gamma(random, variable, shape + 1.0)) + std::log(u) / shape;
}

}  // namespace

double sample_beta(const RandomStream& random, double a, double b) {
  const double log_x = log_gamma_variable(random, 0, a);
  const double log_y = log_gamma_variable(random, 1, b);
  return 1.0 / (1.0 + std::exp(log_y - log_x));
}

}  // namespace tutti::internal
