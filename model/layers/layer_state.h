// State of a layer, shared by its copies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/model/layers/layer.h"

namespace tutti {

/// State that copies of a layer share. Calls of a built layer do not change it.
struct Layer::State {
  /// A sub-layer, or a weight that the layer itself owns.
  struct Item {
    Variable weight;
    Regularizer regularizer;
    Constraint constraint;
    std::shared_ptr<State> child;
  };

  std::string name;
  std::string type_name;
  std::string scope;  // prefix of weight names: "block/conv2d/"
  std::optional<Shape> given_input_shape;
  std::string output_activation;
  std::uint64_t number = 0;  // index of the layer; part of its random keys
  bool has_given_name = false;
  bool made_built = false;  // true for models, which create weights in their constructors
  std::function<Json::Array()> arguments;  // constructor arguments; null: not declared
  bool built = false;
  bool frozen = false;
  bool remat = false;
  bool only_shapes = false;  // set by shapes_for(): build() creates no weights
  std::vector<Shape> input_shapes;
  std::vector<Shape> output_shapes;
  DTypePolicy policy = tutti::dtype_policy();
  std::vector<Item> items;  // in creation order
  std::vector<Variable> weights;
  std::vector<std::shared_ptr<Metric>> metrics;

  /// Calls fn(item, frozen) for every weight of the layer and its sub-layers, in creation order;
  /// visits shared sub-layers once.
  template <class Fn>
  void visit_weights(const Fn& fn, std::set<const State*>& seen, bool frozen_above) const {
    if (!seen.insert(this).second) return;
    for (const Item& item : items) {
      if (item.child) {
        item.child->visit_weights(fn, seen, frozen_above || frozen);
      } else {
        fn(item, frozen_above || frozen);
      }
    }
  }
  template <class Fn>
  void visit_weights(const Fn& fn) const {
    std::set<const State*> seen;
    visit_weights(fn, seen, false);
  }

  /// Calls fn(state) for a layer and all its sub-layers, recursively, in creation order; visits
  /// shared layers once.
  template <class Fn>
  static void visit_layers(const std::shared_ptr<State>& state, Fn&& fn,
                           std::set<const State*>& seen) {
    if (!seen.insert(state.get()).second) return;
    fn(*state);
    for (const Item& item : state->items)
      if (item.child) visit_layers(item.child, fn, seen);
  }

  void collect_metrics(std::vector<std::shared_ptr<Metric>>& found) const {
    for (const auto& metric : metrics)
      if (std::ranges::find(found, metric) == found.end()) found.push_back(metric);
    for (const Item& item : items)
      if (item.child) item.child->collect_metrics(found);
  }

  std::int64_t num_elements(bool trainable_only) const {
    std::int64_t count = 0;
    visit_weights([&](const Item& item, bool is_frozen) {
      if (!trainable_only || (item.weight.trainable() && !is_frozen))
        count += item.weight.shape().num_elements();
    });
    return count;
  }
};

}  // namespace tutti
