// What a plugin is told about its group, and the functions that it may call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tutti/cross_device_ops/plugin_abi.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::internal {

tutti_device_v1 abi_device(const Device& device);

/// Owns what the struct points to; lives as long as the plugin's object, which may keep `store`.
class AbiGroup {
 public:
  explicit AbiGroup(const Group& group);
  AbiGroup(const AbiGroup&) = delete;
  AbiGroup& operator=(const AbiGroup&) = delete;
  const tutti_group_v1& get() const { return group_; }

 private:
  std::shared_ptr<KeyValueStore> store_;
  std::vector<tutti_device_v1> devices_;
  tutti_group_v1 group_{};
};

}  // namespace tutti::internal
