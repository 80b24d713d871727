// Layers that are called with symbols: `Dense(10)(x)` in a graph that is drawn before it runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/model/layers/layer.h"
#include "tutti/tensor/shape.h"

namespace tutti {

// The shape of one example: what a model starts from.

/// `Input{{28, 28, 1}}`: one example has this shape; the batch is not part of it. The start of a
/// Sequential, or of a graph: `SymbolicTensor x = Input{{28, 28, 1}};`.
struct Input {
  Shape shape;
  std::string name = "";
};

// Tensors of a graph that is drawn before it runs.

namespace internal {
struct GraphNode;
}  // namespace internal

/// What a layer gives when it is called with a symbol instead of a tensor: `SymbolicTensor x =
/// Input{{784}}; SymbolicTensor y = Dense(10)(x);`. Nothing is computed and no weight is made until
/// `Functional({x}, {y})` takes the graph in. A cheap handle. KerasTensor.
class SymbolicTensor {
 public:
  /// A new start of a graph; each conversion is another one.
  SymbolicTensor(const Input& input);  // NOLINT
  SymbolicTensor(std::shared_ptr<const internal::GraphNode> node, std::size_t result)
      : node_(std::move(node)), result_(result) {}

  /// One example's shape.
  const Shape& shape() const;
  const internal::GraphNode& node() const { return *node_; }
  /// Which of the node's results this is.
  std::size_t result() const { return result_; }

 private:
  std::shared_ptr<const internal::GraphNode> node_;
  std::size_t result_ = 0;
};

namespace internal {

/// One call of a layer, or a start.
struct GraphNode {
  std::shared_ptr<Layer> layer;  // null: a start
  std::string input_name;        // of a start; may be empty
  std::vector<SymbolicTensor> inputs;
  std::vector<Shape> shapes;  // of the results
  std::uint64_t number = 0;   // in the order in which they were drawn
};

/// Draws a call. Throws what the layer's build() throws for these shapes.
std::vector<SymbolicTensor> draw_call(std::shared_ptr<Layer> layer,
                                      std::span<const SymbolicTensor> inputs);
/// The only one of `results`; throws kInvalidArgument naming the layer when there are more.
SymbolicTensor only_result(const std::vector<SymbolicTensor>& results);

}  // namespace internal

// What makes a layer callable with symbols: `Dense(10)(x)` in a graph.

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
