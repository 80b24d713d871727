// CUDA's rules for CUDA_VISIBLE_DEVICES.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/gpu/visible_devices.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <sstream>

namespace tutti {

std::optional<std::vector<int>> visible_devices(const std::optional<std::string>& mask,
                                                int num_devices) {
  std::vector<int> indices;
  if (!mask) {
    indices.resize(static_cast<std::size_t>(num_devices));
    std::iota(indices.begin(), indices.end(), 0);
    return indices;
  }
  if (mask->starts_with("GPU-") || mask->starts_with("MIG-")) return {};
  std::istringstream entries(*mask);
  for (std::string entry; std::getline(entries, entry, ',');) {
    // CUDA reads as strtol does: blanks in front and what follows the digits do not count.
    char* end = nullptr;
    const long index = std::strtol(entry.c_str(), &end, 10);
    if (end == entry.c_str() || index < 0 || index >= num_devices) break;
    const int found = static_cast<int>(index);
    if (std::find(indices.begin(), indices.end(), found) != indices.end()) {
      return std::vector<int>();
    }
    indices.push_back(found);
  }
  return indices;
}

}  // namespace tutti
