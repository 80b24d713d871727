// A plugin's table, checked, as a CrossDeviceOps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/plugin_abi.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::internal {

struct PluginTable {
  std::string name;
  std::string path;  // for messages
  /// The plugin's, with NULL for what its version does not have.
  tutti_cross_device_ops_v1 calls{};
};

/// Reads no more of `table` than its struct_size says. Throws kInvalidArgument naming path and
/// member: no table, a size that no version of it has, a bad name, a required member that is NULL.
PluginTable checked_plugin_table(const tutti_cross_device_ops_v1* table, const std::string& path);

tutti_device_v1 abi_device(const Device& device);

/// What a plugin is told about its group, and the functions that it may call. Owns what the struct
/// points to; lives as long as the plugin's object, which may keep `store`.
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

/// An object of the plugin, behind the interface that the rest of the library sees. Codes that the
/// plugin returns become Errors "plugin '<name>': <message>".
class AbiCrossDeviceOps final : public CrossDeviceOps {
 public:
  /// Throws what create() reports, kInternal for a grade, a code or an error bound that does not
  /// exist, and kUnimplemented for a group of several processes that the plugin does not know.
  AbiCrossDeviceOps(std::shared_ptr<const PluginTable> table, const Group& group,
                    const CommunicationOptions& options, const Json& own_options);
  ~AbiCrossDeviceOps() override;
  AbiCrossDeviceOps(const AbiCrossDeviceOps&) = delete;
  AbiCrossDeviceOps& operator=(const AbiCrossDeviceOps&) = delete;

  std::string_view name() const override { return table_->name; }
  /// On CPUs: version 1 of the interface knows no streams.
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override;
  Determinism determinism() const override { return determinism_; }
  bool sliceable() const override { return sliceable_; }
  double max_relative_error() const override { return max_relative_error_; }
  bool spans_processes() const override;
  bool provides(Collective collective) const override;
  void abort(const Error& reason) noexcept override;

 protected:
  void require_buffers(std::span<const ReplicaBuffer> inputs,
                       std::span<const ReplicaBuffer> outputs) const override;
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override;
  void reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                      const ReplicaBuffer* output, int root) override;
  void broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root) override;
  void all_gather_buffers(std::span<const ReplicaBuffer> inputs,
                          std::span<const ReplicaBuffer> outputs,
                          std::span<const std::size_t> counts) override;
  void reduce_scatter_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                              std::span<const ReplicaBuffer> outputs,
                              std::span<const std::size_t> counts) override;
  void all_to_all_buffers(std::span<const ReplicaBuffer> inputs,
                          std::span<const ReplicaBuffer> outputs,
                          std::span<const std::size_t> counts) override;

 private:
  template <class Function, class... Arguments>
  void call(const char* name, Function function, const Arguments&... arguments);
  [[noreturn]] void fail_with(const char* function, std::int32_t code,
                              const tutti_error_v1& error) const;
  void check_group(const Group& group) const;
  Determinism read_determinism() const;
  double read_max_relative_error() const;
  std::optional<Error> abort_reason() const;

  std::shared_ptr<const PluginTable> table_;
  const AbiGroup group_;
  std::int64_t timeout_ms_;
  void* self_ = nullptr;
  Determinism determinism_ = Determinism::kNone;
  bool sliceable_ = false;
  double max_relative_error_ = 0.0;
  mutable Mutex mutex_;
  std::optional<Error> aborted_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
