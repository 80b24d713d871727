// A device name with job, replica and task, each optional: tf's DeviceSpec.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tutti/tensor/device.h"

namespace tutti {

/// "/job:worker/replica:0/task:1/device:GPU:0", or some of its parts; a task's own prefix is
/// Task::device_prefix() (cluster/cluster_spec.h). Never checks that the device exists. A plain
/// value: tf's replace() is an assignment to a copy's member.
struct DeviceSpec {
  std::optional<std::string> job = {};
  std::optional<int> replica = {};
  std::optional<int> task = {};
  std::optional<DeviceType> type = {};
  std::optional<int> index = {};

  /// Also the older "/gpu:0". Throws kInvalidArgument naming the text, the part that cannot be read
  /// and why.
  static DeviceSpec parse(std::string_view text);
  /// This spec with the parts that `inner` has replaced by inner's (a nested device scope): tf's
  /// make_merged_spec().
  DeviceSpec merged_with(const DeviceSpec& inner) const;
  std::string to_string() const;
  bool operator==(const DeviceSpec&) const = default;
};

/// The device of this process that `spec` names (missing parts: cpu, index 0). Throws kUnavailable
/// with the list of devices here.
Device resolve(const DeviceSpec& spec);

}  // namespace tutti
