// A tower: one copy of the network's computation, and what it notes on the way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/autograd/variable_storage.h"

namespace tutti::examples::cifar10 {

/// Names, losses and activations of one step of one tower: TensorFlow's name scopes and collections
/// as a value. Used by the thread that computes the tower.
class Tower {
 public:
  explicit Tower(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  /// While it lives, names stand below "<scope>/". Scopes nest.
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
  /// "tower_0/conv1/weight_loss".
  std::string full_name(std::string_view name) const;

  /// Adds to the collection of this tower's losses. `loss`: [].
  void add_loss(std::string_view name, const Tensor& loss);
  const std::vector<NamedTensor>& losses() const { return losses_; }
  /// The sum of the losses so far, in order. Throws kFailedPrecondition when there is none.
  Tensor total_loss() const;

  /// Keeps a layer's result for summaries, in steps that have them.
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

/// The name without "tower_<number>/" in front: how people see it, however many towers there are.
std::string without_tower(std::string_view name);

}  // namespace tutti::examples::cifar10
