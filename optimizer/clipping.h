// Limits on gradients, applied to what was summed over replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tutti/tensor/gradient.h"

namespace tutti {

/// At most one may be set; each positive. Keras's names.
struct ClippingOptions {
  std::optional<double> clipnorm = std::nullopt;         // norm of each gradient
  std::optional<double> clipvalue = std::nullopt;        // each element
  std::optional<double> global_clipnorm = std::nullopt;  // norm of all gradients together
  void validate(std::string_view who) const;
  bool any() const { return clipnorm || clipvalue || global_clipnorm; }
};

/// Every element times `factor`; none stays none.
Gradient scale_gradient(const Gradient& gradient, double factor);

/// The sum of squares in double, in the order of tensor/sum_of_squares.h, which depends on the size
/// alone. IndexedSlices count with their duplicates added.
double sum_of_squares(const Gradient& gradient);

/// The gradients after clipping; gradients that are none stay none. The tf rule: scale = clipnorm /
/// max(norm, clipnorm).
std::vector<Gradient> clip_gradients(std::vector<Gradient> gradients,
                                     const ClippingOptions& options);

}  // namespace tutti
