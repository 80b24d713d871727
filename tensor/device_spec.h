// A device name with job, replica and task, each optional: tf's DeviceSpec.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tutti/tensor/device.h"

namespace tutti {

/// "/job:worker/replica:0/task:1/device:GPU:0". Never checks that the device exists. A plain value.
struct DeviceSpec {
  std::optional<std::string> job;
  std::optional<int> replica;
  std::optional<int> task;
  std::optional<DeviceType> type;
  std::optional<int> index;

  /// Throws kInvalidArgument naming the text and the part that cannot be read.
  static DeviceSpec parse(std::string_view text);
  /// This spec with the parts that `inner` has replaced by inner's (a nested device scope).
  DeviceSpec merged_with(const DeviceSpec& inner) const;
  std::string to_string() const;
  bool operator==(const DeviceSpec&) const = default;
};

/// The device of this process that `spec` names (missing parts: cpu, index 0). Throws kUnavailable
/// with the list of devices here.
Device resolve(const DeviceSpec& spec);

}  // namespace tutti
