// Dropout: the mask is a function of the key and the element's index.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "tutti/tensor/cpu/registration.h"

namespace tutti::internal {
namespace {

template <class T>
void dropout(const KernelArgs& args) {
  const auto& attributes = args.attributes_as<DropoutAttributes>();
  const RandomStream stream(attributes.key);
  const float rate = static_cast<float>(attributes.rate);
  const T scale = static_cast<T>(1.0 / (1.0 - attributes.rate));
  const auto x = args.in<T>(0);
  const auto y = args.out<T>(0);
  std::array<float, 1024> draws;
  for (std::size_t first = 0; first < x.size(); first += draws.size()) {
    const std::size_t count = std::min(draws.size(), x.size() - first);
    stream.fill_uniform(first, std::span(draws).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      y[first + i] = draws[i] < rate ? T{0} : x[first + i] * scale;
    }
  }
}

}  // namespace

void register_random_reference_kernels(KernelTable& table) {
  table.set(OpId::kDropout, DType::kFloat32, dropout<float>);
  table.set(OpId::kDropout, DType::kFloat64, dropout<double>);
}

}  // namespace tutti::internal
