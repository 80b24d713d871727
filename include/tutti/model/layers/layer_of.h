// Symbolic calls of layers: `Dense(10)(x)` adds a call to a graph that runs later.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/model/layers/layer.h"
#include "tutti/tensor/shape.h"

namespace tutti {

// Symbolic tensors.

namespace internal {
struct GraphNode;
}  // namespace internal

/// Value in a graph: an Input, or the result of calling a layer on a SymbolicTensor, as in `auto x
/// = Input{{784}}; auto y = Dense(10)(x);`. Such calls compute nothing; the constructor
/// `Functional({x}, {y})` creates the weights. A cheap handle. Corresponds to KerasTensor.
class SymbolicTensor {
 public:
  SymbolicTensor(std::shared_ptr<const internal::GraphNode> node, std::size_t result)
      : node_(std::move(node)), result_(result) {}

  /// Shape of one example.
  const Shape& shape() const;
  const internal::GraphNode& node() const { return *node_; }
  /// Index of this value among the node's results.
  std::size_t result() const { return result_; }

 private:
  std::shared_ptr<const internal::GraphNode> node_;
  std::size_t result_ = 0;
};

/// Input of a model, with the shape of one example (without the batch dimension): `Input{{28, 28,
/// 1}}`. It is the first argument of a Sequential, or begins a graph: `auto x = Input{{28, 28,
/// 1}};`. Copies refer to the same input. Corresponds to keras.Input.
class Input : public SymbolicTensor {
 public:
  Input(Shape shape, std::string name = "");  // NOLINT: implicit, so that a shape is an input

  /// Name given in the constructor; may be empty.
  const std::string& name() const;
  Json to_json() const;
  static Input from_json(const Json& json);
};

namespace internal {

/// A call to a layer, or an input.
struct GraphNode {
  std::shared_ptr<Layer> layer;  // null if this node is an input
  std::string input_name;        // name if this node is an input; may be empty
  std::vector<SymbolicTensor> inputs;
  std::vector<Shape> shapes;  // shapes of the results
  std::uint64_t number = 0;   // position in creation order
};

/// Adds a call to the graph and returns its results. Throws the errors of the layer's build().
std::vector<SymbolicTensor> draw_call(std::shared_ptr<Layer> layer,
                                      std::span<const SymbolicTensor> inputs);
/// Returns the only result. Throws kInvalidArgument, naming the layer, if there are several.
SymbolicTensor only_result(const std::vector<SymbolicTensor>& results);

}  // namespace internal

// Base class of layers that can be called with symbolic tensors.

/// Base class of layers that can also be called with a SymbolicTensor: `class Dense : public
/// LayerOf<Dense>`. Its first template argument is the layer's own type; the graph stores a handle
/// of that type. A class that derives only from Layer works in Sequential and in other layers; in a
/// graph, call it with `x | MyLayer()`.
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
  /// Returns all results.
  std::vector<SymbolicTensor> apply(std::span<const SymbolicTensor> inputs) const {
    return internal::draw_call(std::make_shared<Derived>(static_cast<const Derived&>(*this)),
                               inputs);
  }

 protected:
  using Base::Base;
};

/// Calls any layer, including custom layers, with a symbolic tensor: `x | Flatten() | Dense(10)`.
template <std::derived_from<Layer> L>
SymbolicTensor operator|(const SymbolicTensor& input, L layer) {
  return internal::only_result(
      internal::draw_call(std::make_shared<L>(std::move(layer)), {&input, 1}));
}

}  // namespace tutti
