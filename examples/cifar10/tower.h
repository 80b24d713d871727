// Tower: one copy of the network's computation, with its names, losses and activations.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/autograd/variable_storage.h"

namespace tutti::examples::cifar10 {

/// Names, losses and activations of one step of one tower. Corresponds to TensorFlow's name scopes
/// and collections. Not thread-safe.
class Tower {
 public:
  explicit Tower(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  /// Scope that prefixes names with "<scope>/". Scopes nest.
  class NameScope {
   public:
    NameScope(Tower& tower, std::string scope) : tower_(tower) {
      tower_.scopes_.push_back(std::move(scope));
    }
    ~NameScope() { tower_.scopes_.pop_back(); }
    NameScope(const NameScope&) = delete;
    NameScope& operator=(const NameScope&) = delete;

   private:
    Tower& tower_;
  };
  [[nodiscard]] NameScope name_scope(std::string scope) { return {*this, std::move(scope)}; }
  /// Returns the name with all prefixes, such as "tower_0/conv1/weight_loss".
  std::string full_name(std::string_view name) const;

  /// Adds a loss of shape [] to this tower's loss collection.
  void add_loss(std::string_view name, const Tensor& loss);
  const std::vector<NamedTensor>& losses() const { return losses_; }
  /// Returns the sum of the losses so far, in the order of add_loss(). Throws kFailedPrecondition
  /// if there are no losses.
  Tensor total_loss() const;

  /// Stores a layer's output for the summaries, if this step writes any.
  void note_activation(std::string_view name, const Tensor& value);
  void keep_activations() { keeps_activations_ = true; }
  const std::vector<NamedTensor>& activations() const { return activations_; }

 private:
  std::string name_;
  std::vector<std::string> scopes_;
  std::vector<NamedTensor> losses_;
  std::vector<NamedTensor> activations_;
  bool keeps_activations_ = false;
};

/// Returns the name without the prefix "tower_<number>/", for display.
std::string without_tower(std::string_view name);

}  // namespace tutti::examples::cifar10
