// One copy of a distributed variable, wherever its values are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "tutti/autograd/variable_storage.h"

namespace tutti::internal {

/// What a DistributedStorage is made of: memory of a device of this process, or shards on parameter
/// servers. Not synchronised: whoever owns it keeps writes apart.
class Component {
 public:
  virtual ~Component() = default;
  /// A tensor that was read never changes.
  virtual Tensor read() const = 0;
  /// Where read() puts it.
  virtual Device device() const = 0;
  virtual void assign(AssignOp op, const Tensor& value) = 0;
  /// `name` of the variable, for messages.
  virtual void scatter(ScatterOp op, const IndexedSlices& slices, const std::string& name) = 0;
  /// `slots` are components of the same kind, of variables that create_slot() made.
  virtual void update(std::span<Component* const> slots, const UpdateRule& rule,
                      const Gradient& gradient, const UpdateScalars& scalars) = 0;
};

/// In memory of a device of this process.
class LocalComponent final : public Component {
 public:
  LocalComponent(const Tensor& initial_value, Device device)
      : component_(initial_value.to(device), device) {}
  Tensor read() const override { return component_.read(); }
  Device device() const override { return component_.device(); }
  void assign(AssignOp op, const Tensor& value) override { component_.assign(op, value); }
  void scatter(ScatterOp op, const IndexedSlices& slices, const std::string& name) override {
    component_.scatter(op, slices, name);
  }
  void update(std::span<Component* const> slots, const UpdateRule& rule, const Gradient& gradient,
              const UpdateScalars& scalars) override;

 private:
  VariableComponent component_;
};

}  // namespace tutti::internal
