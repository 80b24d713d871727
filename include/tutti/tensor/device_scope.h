// Where a block makes tensors and runs operations, and a log of what ran where.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tutti/tensor/device.h"
#include "tutti/tensor/op.h"

namespace tutti {

// Where a block of the program makes tensors and variables and runs operations: tf.device.

/// While it lives, what this thread makes without naming a device is made on the scope's device:
/// tensors (Tensor::full() and its kin, random tensors), variables and therefore layers. Operations
/// run there too; inputs from other devices are moved first (dispatch.h), and gradients flow back
/// to where the inputs were. Scopes nest: parts that the inner one names override the outer's, as
/// DeviceSpec::merged_with(). A scope that names no device type (the empty text, a job alone)
/// changes nothing by itself.
///
/// A strategy decides where its variables live and where its replicas compute: its variables take
/// no notice of device scopes, and a replica starts in one of its device instead of those that were
/// open around run().
/// Threads: holds for the thread that made it; other threads start without a scope (hand them
/// current_device_scope()). Scopes of a thread are destroyed in the reverse order. tf.device.
class DeviceScope {
 public:
  /// "/cpu:0", "cpu:2", "/gpu:1", "/device:GPU:1", "/job:worker/task:1", ...; a missing index is 0.
  /// Throws kInvalidArgument for a text that cannot be read, kUnavailable for a device of this
  /// process that it does not have. Devices of other processes are not looked for.
  explicit DeviceScope(std::string_view spec);
  explicit DeviceScope(const DeviceSpec& spec);
  explicit DeviceScope(Device device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  /// With the parts of the scopes around it.
  const DeviceSpec& merged() const { return merged_; }
  /// The device of this process; nothing when no type is named. In a scope of another process
  /// (is_remote()): Device{} within Session::scope(), which sends tensors there; else throws
  /// kUnavailable, naming `who`, the other process and Session.
  std::optional<Device> device(std::string_view who) const;
  /// Whether job, replica or task are those of another process.
  bool is_remote() const { return is_remote_; }

  /// The innermost one of this thread, or nullptr.
  static const DeviceScope* current();

 private:
  DeviceSpec merged_;
  std::optional<Device> device_;
  bool is_remote_ = false;
  const DeviceScope* outer_;
};

/// While it lives this thread has no device scope: tf.device(None).
class NoDeviceScope {
 public:
  NoDeviceScope();
  ~NoDeviceScope();
  NoDeviceScope(const NoDeviceScope&) = delete;
  NoDeviceScope& operator=(const NoDeviceScope&) = delete;

 private:
  const DeviceScope* outer_;
};

/// The parts that the scopes of this thread name together; none outside of all.
DeviceSpec current_device_scope();

/// Job, replica and task of this process: /job:localhost/replica:0/task:0 unless it was told.
/// "/job:localhost" always means this process. Any thread.
DeviceSpec process_spec();
/// For programs that are a task of a cluster. Before scopes are made; parts left out are those of
/// the default, type and index count for nothing.
void set_process_spec(const DeviceSpec& spec);
/// Whether job, replica and task, as far as `spec` names them, are this process's.
bool is_of_this_process(const DeviceSpec& spec);

/// "/job:localhost/replica:0/task:0/device:CPU:0": tf's full name of a device of this process.
std::string full_device_name(const Device& device);

// Which operation runs on which device: tf.debugging.set_log_device_placement.

/// Gets one line per operation; called by the thread that ran it, one at a time.
using PlacementSink = std::function<void(const std::string& line)>;

/// From now on each operation of each thread gives a line,
/// "MatMul: /job:localhost/replica:0/task:0/device:CPU:0", to `sink`; without one to the log.
/// false: no longer. Operations that a captured step repeats without the host are not seen again.
/// Threads: any, while no operation runs. tf.debugging.set_log_device_placement.
void set_log_device_placement(bool on, PlacementSink sink = {});

/// tf's name of an operation's type: "MatMul", "Conv2D", "Sum".
std::string_view tf_op_name(OpId op);

namespace internal {
bool placement_is_logged();
void log_placement(const OpCall& call, std::span<const Tensor> outputs);
}  // namespace internal

}  // namespace tutti
