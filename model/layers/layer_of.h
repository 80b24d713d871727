// What makes a layer callable with symbols: `Dense(10)(x)` in a graph.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tutti/model/layers/symbolic_tensor.h"

namespace tutti {

/// `class Dense : public LayerOf<Dense>`: a Layer that can also be called with SymbolicTensors,
/// which needs the layer's own type (the graph keeps a handle to it). A layer that derives from
/// Layer alone works in Sequential and in other layers; in a graph it is written `x | MyLayer()`.
template <class Derived, class Base = Layer>
class LayerOf : public Base {
 public:
  using Base::operator();
  using Base::apply;

  SymbolicTensor operator()(const SymbolicTensor& input) const {
    return internal::only_result(apply({&input, 1}));
  }
  SymbolicTensor operator()(const std::vector<SymbolicTensor>& inputs) const {
    return internal::only_result(apply(inputs));
  }
  /// All results.
  std::vector<SymbolicTensor> apply(std::span<const SymbolicTensor> inputs) const {
    return internal::draw_call(std::make_shared<Derived>(static_cast<const Derived&>(*this)),
                               inputs);
  }

 protected:
  using Base::Base;
};

/// `x | Flatten() | Dense(10)`: any layer, users' own included, called with a symbol.
template <std::derived_from<Layer> L>
SymbolicTensor operator|(const SymbolicTensor& input, L layer) {
  return internal::only_result(
      internal::draw_call(std::make_shared<L>(std::move(layer)), {&input, 1}));
}

}  // namespace tutti
