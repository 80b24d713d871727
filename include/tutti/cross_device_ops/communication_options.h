// Options for collective operations: tf.distribute.experimental.CommunicationOptions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tutti {

/// Family of algorithms. Constructing an operation of a family that this build lacks throws.
enum class CommunicationImplementation { kAuto, kRing, kNccl, kMpi, kCanonical };
/// Parses the name ("nccl"), ignoring case. Throws kInvalidArgument, listing the names, if it is
/// unknown.
CommunicationImplementation parse_communication_implementation(std::string_view text);
std::string_view to_string(CommunicationImplementation implementation);

/// Type in which a replica's gradients are sent. Each replica rounds its gradient plus the rounding
/// error of its previous steps (error feedback), so no error accumulates. Rounded values are added
/// as float32. Finite values beyond the type's range become its largest value.
enum class WireCompression { kNone, kBFloat16, kFloat16 };
/// Parses "none", "bfloat16" or "float16", ignoring case. Throws kInvalidArgument, listing the
/// names, for any other text.
WireCompression parse_wire_compression(std::string_view text);
std::string_view to_string(WireCompression compression);

/// Treatment of a step whose gradients, or their sum over replicas, are not all finite. kIgnore:
/// not checked. kError: the step fails with kOutOfRange, naming the variable, flat index, replica
/// and step; variables stay unchanged. kSkip: no replica updates anything in this step; each
/// strategy logs the first such step.
enum class NonFinitePolicy { kIgnore, kError, kSkip };
/// Parses "ignore", "error" or "skip", ignoring case. Throws kInvalidArgument, listing the names,
/// for any other text.
NonFinitePolicy parse_non_finite_policy(std::string_view text);
std::string_view to_string(NonFinitePolicy policy);

/// Default time that a collective waits for the other ranks.
inline constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::seconds(120);

/// Options for collective operations. merged_with() treats a field with its default value as unset.
struct CommunicationOptions {
  /// Approximate size of the buffers into which tensors are packed, in bytes; 0: 4 MiB.
  std::int64_t bytes_per_pack = 0;
  /// Size of the first pack of a step's gradients, in bytes; a small pack is reduced early in the
  /// backward pass. 0: bytes_per_pack, but at most 1 MiB.
  std::int64_t first_bytes_per_pack = 0;
  /// Time for which a collective waits for a missing replica; must be above 0. Unset:
  /// kDefaultTimeout.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  CommunicationImplementation implementation = CommunicationImplementation::kAuto;
  /// If true, a reduction, type or device that the named operation does not support is an error; if
  /// false, another operation replaces it.
  bool strict = false;

  /// Type for sending the gradients that a strategy sums in minimize() and apply_gradients(), if
  /// they are float32 and dense. 16-bit types, integers and IndexedSlices are sent unchanged;
  /// float64 is rejected. Other reductions are exact.
  WireCompression compression = WireCompression::kNone;
  /// Treatment of non-finite values in the gradients that a strategy sums, whatever their type.
  NonFinitePolicy non_finite = NonFinitePolicy::kIgnore;

  /// Throws kInvalidArgument naming the invalid field.
  void validate() const;
  /// Returns these options, overridden by the fields of `other` that differ from their defaults.
  CommunicationOptions merged_with(const CommunicationOptions& other) const;
  bool operator==(const CommunicationOptions&) const = default;
};

}  // namespace tutti
