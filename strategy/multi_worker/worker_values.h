// Values of replicas as bytes: how they get from worker to worker outside the sums of gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/tensor/gradient.h"

namespace tutti::internal {

/// What each replica of a worker gives: as many values each, dense, slices, or none.
using ReplicaValues = std::vector<std::vector<Gradient>>;

/// Copies values on GPUs to the host. Numbers are little-endian, as in memory.
std::string encode_values(const ReplicaValues& values);
/// On the host. Throws kDataLoss for bytes that no encode_values() made.
ReplicaValues decode_values(std::string_view bytes);

}  // namespace tutti::internal
