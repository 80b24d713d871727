// Tensors of a graph that is drawn before it runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tutti/model/layers/input.h"
#include "tutti/model/layers/layer.h"

namespace tutti {

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

  /// Of one example.
  const Shape& shape() const;
  const internal::GraphNode& node() const { return *node_; }
  std::shared_ptr<const internal::GraphNode> shared_node() const { return node_; }
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
}  // namespace tutti
