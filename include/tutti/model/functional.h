// Functional, a model that is a graph of layers with any number of inputs and outputs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/model/layers/layer_of.h"
#include "tutti/model/model.h"

namespace tutti {

namespace internal {
/// Saved form of a graph of layers. Values are numbered consecutively: the inputs, then the results
/// of each call.
struct GraphDescription {
  struct Call {
    std::size_t layer = 0;  // index into `layers`
    std::vector<std::size_t> arguments;
  };
  std::vector<Input> inputs;
  std::vector<std::shared_ptr<Layer>> layers;
  std::vector<Call> calls;
  std::vector<std::size_t> outputs;
};
}  // namespace internal

/// Model defined by calling layers with symbolic tensors:
///
///     auto x = Input{{32, 32, 3}};
///     auto y = Conv2D(3, 3, {.padding = "same"})(x);
///     Functional model({x}, {Dense(10)(Flatten()(Add()({x, y})))});
///
/// The constructor creates the weights, in the current strategy's scope, in the order in which the
/// layers were called. All calls of a layer share one set of weights. The batches of fit() contain
/// the inputs in the order of `inputs`, then the labels in the order of `outputs`. Corresponds to
/// keras.Model(inputs, outputs).
class Functional : public LayerOf<Functional, Model> {
 public:
  /// Throws kInvalidArgument if an output needs an unlisted input, or if a list is empty.
  Functional(std::vector<SymbolicTensor> inputs, std::vector<SymbolicTensor> outputs,
             std::string name = "");

  /// Creates the model from a saved graph whose layers have no weights yet.
  static Functional of_description(const internal::GraphDescription& graph, std::string name);
  internal::GraphDescription graph() const;

  std::vector<Output> outputs() const override;
  std::vector<Edge> edges() const override;
  std::vector<std::string> input_names() const override { return graph_->input_names; }

 protected:
  Tensor call(const Tensor& input, CallContext context) const override;
  std::vector<Tensor> call_all(std::span<const Tensor> inputs, CallContext context) const override;
  Json::Array call_arguments() const override;

 private:
  /// One call of a layer. Values are numbered as in GraphDescription.
  struct Step {
    std::shared_ptr<Layer> layer;
    std::vector<std::size_t> arguments;
    std::size_t first_result = 0;
    std::size_t num_results = 0;
  };
  struct Graph {
    std::vector<Step> steps;
    std::vector<std::string> input_names;
    std::vector<std::size_t> outputs;  // numbers of the values that are outputs
    std::vector<Output> output_infos;
    std::vector<Edge> edges;
    std::size_t num_values = 0;
  };
  class Builder;

  std::shared_ptr<Graph> graph_;
};

}  // namespace tutti
