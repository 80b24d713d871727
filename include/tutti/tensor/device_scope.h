// Scopes that place tensors and operations on a device, and a log of placements.
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

// Device scopes: tf.device.

/// Scope that sets the default device of this thread: tensors (Tensor::full() and similar, random
/// tensors), variables and therefore layers are created on it unless the call names a device.
/// Operations run on it, too; inputs from other devices are moved first (dispatch.h), and their
/// gradients are moved back. Scopes nest: the fields that the inner scope sets override those of
/// the outer scope, as in DeviceSpec::merged_with(). A scope without a device type (the empty text,
/// or only a job) has no effect by itself.
///
/// A strategy decides where its variables are stored and where its replicas compute. Its variables
/// ignore device scopes, and a replica starts in a scope of its own device instead of the scopes
/// that are open around run(). A scope applies only to the thread that created it; other threads
/// start without a scope (pass them current_device_scope()). Each thread must destroy its scopes in
/// reverse order of creation. Equivalent of tf.device.
class DeviceScope {
 public:
  /// Opens a scope for "/cpu:0", "cpu:2", "/gpu:1", "/device:GPU:1", "/job:worker/task:1", ...; a
  /// missing index is 0. Throws kInvalidArgument if the text cannot be parsed, and kUnavailable if
  /// this process does not have the device. Devices of other processes are not looked up.
  explicit DeviceScope(std::string_view spec);
  explicit DeviceScope(const DeviceSpec& spec);
  explicit DeviceScope(Device device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  /// Returns the scope's specification, merged with the specifications of the enclosing scopes.
  const DeviceSpec& merged() const { return merged_; }
  /// Returns the scope's device in this process; nullopt if no device type is set. If the scope is
  /// remote (is_remote()), returns Device{} within Session::scope(), which sends tensors to that
  /// process; otherwise throws kUnavailable, naming `who` and that process.
  std::optional<Device> device(std::string_view who) const;
  /// Returns true if the scope names the job, replica or task of another process.
  bool is_remote() const { return is_remote_; }

  /// Returns the innermost scope of this thread, or nullptr.
  static const DeviceScope* current();

 private:
  DeviceSpec merged_;
  std::optional<Device> device_;
  bool is_remote_ = false;
  const DeviceScope* outer_;
};

/// Scope that disables all device scopes on this thread, like tf.device(None).
class NoDeviceScope {
 public:
  NoDeviceScope();
  ~NoDeviceScope();
  NoDeviceScope(const NoDeviceScope&) = delete;
  NoDeviceScope& operator=(const NoDeviceScope&) = delete;

 private:
  const DeviceScope* outer_;
};

/// Returns the merged specification of this thread's scopes; empty if there are none.
DeviceSpec current_device_scope();

/// Returns the job, replica and task of this process: /job:localhost/replica:0/task:0 unless
/// set_process_spec() was called. "/job:localhost" always means this process. Thread-safe.
DeviceSpec process_spec();
/// Sets the job, replica and task of this process, for programs that are tasks of a cluster.
/// Missing parts get their defaults; type and index are ignored. Call it before creating device
/// scopes.
void set_process_spec(const DeviceSpec& spec);
/// Returns true unless the job, replica or task of `spec` names another process.
bool is_of_this_process(const DeviceSpec& spec);

/// Returns tf's full name of a device of this process:
/// "/job:localhost/replica:0/task:0/device:CPU:0".
std::string full_device_name(const Device& device);

// Log of placements: tf.debugging.set_log_device_placement.

/// Function that receives one line per operation. Called on the thread that ran the operation, but
/// not concurrently.
using PlacementSink = std::function<void(const std::string& line)>;

/// Turns placement logging on or off. While it is on, each operation of each thread writes a line
/// such as "MatMul: /job:localhost/replica:0/task:0/device:CPU:0" to `sink`, or to the log if
/// `sink` is empty. Operations that a captured step replays are not logged. Thread-safe while no
/// operation runs. Equivalent of tf.debugging.set_log_device_placement.
void set_log_device_placement(bool on, PlacementSink sink = {});

/// Returns TensorFlow's name for an operation's type: "MatMul", "Conv2D", "Sum".
std::string_view tf_op_name(OpId op);

namespace internal {
bool placement_is_logged();
void log_placement(const OpCall& call, std::span<const Tensor> outputs);
}  // namespace internal

}  // namespace tutti
