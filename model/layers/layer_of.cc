// Symbolic tensors: nodes of a graph that runs later.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/layer_of.h"

#include <atomic>

namespace tutti {
namespace {

std::uint64_t next_node_number() {
  static std::atomic<std::uint64_t> next{0};
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::shared_ptr<internal::GraphNode> make_node() {
  auto node = std::make_shared<internal::GraphNode>();
  node->number = next_node_number();
  return node;
}

std::shared_ptr<const internal::GraphNode> make_input(Shape shape, std::string name) {
  auto node = make_node();
  node->input_name = std::move(name);
  node->shapes = {std::move(shape)};
  return node;
}

/// JSON form of an Input.
struct InputFields {
  Shape shape = {};
  std::string name = "";
};

}  // namespace

const Shape& SymbolicTensor::shape() const { return node_->shapes[result_]; }

Input::Input(Shape shape, std::string name)
    : SymbolicTensor(make_input(std::move(shape), std::move(name)), 0) {}

const std::string& Input::name() const { return node().input_name; }

Json Input::to_json() const { return json_of(InputFields{shape(), name()}); }

Input Input::from_json(const Json& json) {
  InputFields fields = value_of<InputFields>(json);
  return {std::move(fields.shape), std::move(fields.name)};
}

namespace internal {

std::vector<SymbolicTensor> draw_call(std::shared_ptr<Layer> layer,
                                      std::span<const SymbolicTensor> inputs) {
  auto node = make_node();
  std::vector<Shape> shapes;
  for (const SymbolicTensor& input : inputs) shapes.push_back(input.shape());
  node->inputs.assign(inputs.begin(), inputs.end());
  node->shapes = layer->shapes_for(shapes);
  (void)layer->type_name();  // caches the type name: a sliced copy would return its base's name
  node->layer = std::move(layer);
  std::vector<SymbolicTensor> results;
  for (std::size_t i = 0; i < node->shapes.size(); ++i) results.emplace_back(node, i);
  return results;
}

SymbolicTensor only_result(const std::vector<SymbolicTensor>& results) {
  if (results.size() == 1) return results[0];
  const Layer& layer = *results.at(0).node().layer;
  fail(ErrorCode::kInvalidArgument, "layer '", layer.name(), "' (", layer.type_name(),
       "): expected one result, got ", results.size(), "; call apply(inputs)");
}

}  // namespace internal
}  // namespace tutti
