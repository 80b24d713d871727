// A plugin's table as a CrossDeviceOps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tutti/cross_device_ops/plugin/plugin_table.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::internal {

/// An object of the plugin, behind the interface that the rest of the library sees. Codes that the
/// plugin returns become Errors "plugin '<name>': <message>".
class AbiCrossDeviceOps final : public CrossDeviceOps {
 public:
  /// Throws what create() reports, and kInternal for a grade or a code that does not exist.
  AbiCrossDeviceOps(std::shared_ptr<const PluginTable> table, const Group& group,
                    const CommunicationOptions& options);
  ~AbiCrossDeviceOps() override;
  AbiCrossDeviceOps(const AbiCrossDeviceOps&) = delete;
  AbiCrossDeviceOps& operator=(const AbiCrossDeviceOps&) = delete;

  std::string_view name() const override { return table_->name; }
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override;
  Determinism determinism() const override { return determinism_; }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override;

 private:
  [[noreturn]] void fail_with(const char* function, std::int32_t code,
                              const tutti_error_v1& error) const;
  Determinism read_determinism() const;

  std::shared_ptr<const PluginTable> table_;
  std::int64_t timeout_ms_;
  void* self_ = nullptr;
  Determinism determinism_ = Determinism::kNone;
};

}  // namespace tutti::internal
