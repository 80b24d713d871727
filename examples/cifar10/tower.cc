// Implements the names and the collections of a tower.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/tower.h"

#include "tutti/tensor/tensor_ops.h"

namespace tutti::examples::cifar10 {

std::string Tower::full_name(std::string_view name) const {
  std::string full = name_ + "/";
  for (const std::string& scope : scopes_) full += scope + "/";
  return full.append(name);
}

void Tower::add_loss(std::string_view name, const Tensor& loss) {
  losses_.push_back({full_name(name), loss});
}

Tensor Tower::total_loss() const {
  if (losses_.empty()) {
    fail(ErrorCode::kFailedPrecondition, name_,
         ": expected at least one loss, got none; call add_loss()");
  }
  Tensor total = losses_.front().value;
  for (std::size_t i = 1; i < losses_.size(); ++i) total = total + losses_[i].value;
  return total;
}

void Tower::note_activation(std::string_view name, const Tensor& value) {
  if (keeps_activations_) activations_.push_back({full_name(name), value});
}

std::string without_tower(std::string_view name) {
  constexpr std::string_view kPrefix = "tower_";
  if (!name.starts_with(kPrefix)) return std::string(name);
  const std::size_t end = name.find_first_not_of("0123456789", kPrefix.size());
  const bool is_tower = end != std::string_view::npos && name[end] == '/';
  return std::string(is_tower ? name.substr(end + 1) : name);
}

}  // namespace tutti::examples::cifar10
