// Functional: a graph of layers with any number of inputs and outputs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/functional.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/names.h"
#include "tutti/model/layers/layer_description.h"

namespace tutti {

/// Collects the layer calls that lead to the outputs, in the order in which they were made.
class Functional::Builder {
 public:
  Builder(Graph& graph, std::span<const SymbolicTensor> inputs) : graph_(graph) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const internal::GraphNode& node = inputs[i].node();
      if (node.layer) {
        fail(ErrorCode::kInvalidArgument, "Functional: input ", i, " is a result of layer '",
             node.layer->name(), "'; expected an Input{...}");
      }
      if (!first_value_.emplace(&node, i).second)
        fail(ErrorCode::kInvalidArgument, "Functional: expected distinct inputs, but input ", i,
             " is given twice");
      const std::string number = i == 0 ? "" : concat('_', i);
      names_[&node] = node.input_name.empty() ? "input" + number : node.input_name;
      graph_.input_names.push_back(names_[&node]);
    }
    graph_.num_values = inputs.size();
  }

  void collect(const internal::GraphNode& node) {
    if (first_value_.contains(&node) || !nodes_.insert({node.number, &node}).second) return;
    if (!node.layer) {
      fail(ErrorCode::kInvalidArgument,
           "Functional: expected all inputs of the graph, but an output depends on ",
           node.input_name.empty() ? "another input" : concat("input '", node.input_name, "'"),
           " of shape ", node.shapes[0], ", which was not passed");
    }
    for (const SymbolicTensor& input : node.inputs) collect(input.node());
  }

  /// Calls take(layer, shapes) for each layer call; take() builds the layer, which then has a name.
  template <class Take>
  void add_steps(const Take& take) {
    for (const auto& [number, node] : nodes_) {
      std::vector<Shape> shapes;
      Step step{node->layer, {}, graph_.num_values, node->shapes.size()};
      for (const SymbolicTensor& input : node->inputs) {
        shapes.push_back(input.shape());
        step.arguments.push_back(value_of(input));
      }
      take(*node->layer, shapes);
      names_[node] = node->layer->name();
      for (const SymbolicTensor& input : node->inputs) {
        Edge edge{names_.at(&input.node()), names_[node]};
        if (std::ranges::find(graph_.edges, edge) == graph_.edges.end())
          graph_.edges.push_back(std::move(edge));
      }
      first_value_[node] = graph_.num_values;
      graph_.num_values += step.num_results;
      graph_.steps.push_back(std::move(step));
    }
  }

  std::size_t value_of(const SymbolicTensor& symbol) const {
    return first_value_.at(&symbol.node()) + symbol.result();
  }

  Output info_of(const SymbolicTensor& symbol) const {
    const internal::GraphNode& node = symbol.node();
    return {names_.at(&node), node.layer ? node.layer->output_activation() : ""};
  }

 private:
  Graph& graph_;
  std::map<std::uint64_t, const internal::GraphNode*> nodes_;  // keyed by creation number
  std::map<const internal::GraphNode*, std::size_t> first_value_;
  std::map<const internal::GraphNode*, std::string> names_;
};

Functional::Functional(std::vector<SymbolicTensor> inputs, std::vector<SymbolicTensor> outputs,
                       std::string name)
    : LayerOf(std::move(name)), graph_(std::make_shared<Graph>()) {
  internal::require(!inputs.empty() && !outputs.empty(),
                    "Functional: expected at least one input and one output, got ", inputs.size(),
                    " and ", outputs.size());
  std::vector<Shape> input_shapes, output_shapes;
  for (const SymbolicTensor& input : inputs) input_shapes.push_back(input.shape());
  for (const SymbolicTensor& output : outputs) output_shapes.push_back(output.shape());
  set_built(input_shapes, output_shapes);
  Builder builder(*graph_, inputs);
  for (const SymbolicTensor& output : outputs) builder.collect(output.node());
  builder.add_steps(
      [this](Layer& layer, std::span<const Shape> shapes) { (void)add_layer(layer, shapes); });
  std::set<std::string> names;
  for (const SymbolicTensor& output : outputs) {
    graph_->outputs.push_back(builder.value_of(output));
    Output info = builder.info_of(output);
    const std::string base = info.name;
    for (int i = 1; !names.insert(info.name).second; ++i) info.name = concat(base, '_', i);
    graph_->output_infos.push_back(std::move(info));
  }
  set_output_activation(graph_->output_infos[0].activation);
}

internal::GraphDescription Functional::graph() const {
  internal::GraphDescription graph;
  for (std::size_t i = 0; i < input_shapes().size(); ++i)
    graph.inputs.push_back({input_shapes()[i], graph_->input_names[i]});
  for (const Step& step : graph_->steps) {
    const auto same = std::ranges::find(graph.layers, step.layer->name(), &Layer::name);
    graph.calls.push_back({static_cast<std::size_t>(same - graph.layers.begin()), step.arguments});
    if (same == graph.layers.end()) graph.layers.push_back(step.layer);
  }
  graph.outputs = graph_->outputs;
  return graph;
}

Functional Functional::of_description(const internal::GraphDescription& graph, std::string name) {
  std::vector<SymbolicTensor> values(graph.inputs.begin(), graph.inputs.end());
  const auto values_of = [&](const std::vector<std::size_t>& numbers) {
    std::vector<SymbolicTensor> found;
    for (const std::size_t number : numbers) {
      internal::require(number < values.size(), "Functional: expected a value index below ",
                        values.size(), ", got ", number);
      found.push_back(values[number]);
    }
    return found;
  };
  const std::vector<SymbolicTensor> inputs = values;
  for (const auto& call : graph.calls) {
    internal::require(call.layer < graph.layers.size(), "Functional: expected a layer index below ",
                      graph.layers.size(), ", got ", call.layer);
    for (SymbolicTensor& result :
         internal::draw_call(graph.layers[call.layer], values_of(call.arguments))) {
      values.push_back(std::move(result));
    }
  }
  return Functional(inputs, values_of(graph.outputs), std::move(name));
}

Json::Array Functional::call_arguments() const { return {json_of(graph()), json_of(given_name())}; }

std::vector<Model::Output> Functional::outputs() const { return graph_->output_infos; }
std::vector<Model::Edge> Functional::edges() const { return graph_->edges; }

Tensor Functional::call(const Tensor& input, CallContext context) const {
  const std::vector<Tensor> results = call_all({&input, 1}, context);
  if (results.size() == 1) return results[0];
  fail(ErrorCode::kInvalidArgument, "expected one result, got ", results.size(),
       "; call apply(inputs), which returns all of them");
}

std::vector<Tensor> Functional::call_all(std::span<const Tensor> inputs,
                                         CallContext context) const {
  if (inputs.size() != input_shapes().size()) {
    fail(ErrorCode::kInvalidArgument, "expected ", input_shapes().size(), " inputs (",
         join(graph_->input_names), "), got ", inputs.size());
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].rank() == input_shapes()[i].rank() + 1) continue;
    fail(ErrorCode::kInvalidArgument, "input '", graph_->input_names[i],
         "': expected a batch of examples of shape ", input_shapes()[i], ", got a tensor of shape ",
         inputs[i].shape());
  }
  std::vector<Tensor> values(inputs.begin(), inputs.end());
  values.resize(graph_->num_values);
  for (const Step& step : graph_->steps) {
    if (step.arguments.size() == 1 && step.num_results == 1) {
      values[step.first_result] = (*step.layer)(values[step.arguments[0]], context);
      continue;
    }
    std::vector<Tensor> arguments;
    for (const std::size_t number : step.arguments) arguments.push_back(values[number]);
    std::vector<Tensor> results = step.layer->apply(arguments, context);
    std::ranges::move(results, values.begin() + static_cast<std::ptrdiff_t>(step.first_result));
  }
  std::vector<Tensor> results;
  for (const std::size_t number : graph_->outputs) results.push_back(values[number]);
  return results;
}

}  // namespace tutti
