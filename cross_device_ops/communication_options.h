// How collective operations are to be carried out: tf.distribute.experimental.CommunicationOptions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tutti {

/// Which family of algorithms. What a build cannot do is refused when the operation is made.
enum class CommunicationImplementation { kAuto, kRing, kNccl, kMpi, kCanonical };
/// Any case ("nccl"); throws kInvalidArgument listing the names.
CommunicationImplementation parse_communication_implementation(std::string_view text);
std::string_view to_string(CommunicationImplementation implementation);

/// A field that has its default is overridden by merge().
struct CommunicationOptions {
  /// Tensors are packed into buffers of about this size before they are reduced; 0: automatic (4
  /// MiB). Negative: kInvalidArgument.
  std::int64_t bytes_per_pack = 0;
  /// How long a collective waits for a missing replica; nothing: the library's default (120 s).
  /// Zero or less: kInvalidArgument.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  CommunicationImplementation implementation = CommunicationImplementation::kAuto;
  /// A combination that the named operation does not support is an error instead of a fallback with
  /// one line.
  bool strict = false;

  /// Throws kInvalidArgument naming the field.
  void validate() const;
  /// These options with the fields of `other` that are not default.
  CommunicationOptions merged_with(const CommunicationOptions& other) const;
  bool operator==(const CommunicationOptions&) const = default;
};

}  // namespace tutti
