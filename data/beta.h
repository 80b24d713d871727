// Random numbers of the beta distribution.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/core/random.h"

namespace tutti::internal {

/// A number in [0, 1] from Beta(a, b), a and b > 0; a function of the stream, which it takes for
/// itself. X / (X + Y) with X and Y from gamma distributions (Marsaglia, Tsang: "A simple method
/// for generating gamma variables", 2000).
double sample_beta(const RandomStream& random, double a, double b);

}  // namespace tutti::internal
