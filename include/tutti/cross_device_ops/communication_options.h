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

/// In which type a replica's gradients travel. Each replica rounds its gradient plus what rounding
/// kept back before (error feedback), so nothing is lost in the long run; rounded values are added
/// as float32. Finite values beyond the type's range become its largest; the rest stays.
enum class WireCompression { kNone, kBFloat16, kFloat16 };
/// "none", "bfloat16" or "float16", any case; throws kInvalidArgument listing the names.
WireCompression parse_wire_compression(std::string_view text);
std::string_view to_string(WireCompression compression);

/// What becomes of a step whose gradients, or their sum over replicas, are not all finite. kIgnore:
/// not looked for. kError: the step fails with kOutOfRange, naming variable, flat index, replica
/// and step; variables stay as they were. kSkip: no replica updates anything in this step. kZero:
/// zeros stand for these values. The first time in a strategy kSkip and kZero say so.
enum class NonFinitePolicy { kIgnore, kError, kSkip, kZero };
/// "ignore", "error", "skip" or "zero", any case; throws kInvalidArgument listing the names.
NonFinitePolicy parse_non_finite_policy(std::string_view text);
std::string_view to_string(NonFinitePolicy policy);

/// How long a collective waits for the other ranks, where nothing else is said.
inline constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::seconds(120);

/// A field that has its default is overridden by merge().
struct CommunicationOptions {
  /// Tensors are packed into buffers of about this size before they are reduced; 0: 4 MiB.
  std::int64_t bytes_per_pack = 0;
  /// The first pack of a step's gradients, which is reduced while the backward pass is young; 0:
  /// bytes_per_pack, 1 MiB at most.
  std::int64_t first_bytes_per_pack = 0;
  /// How long a collective waits for a missing replica, above 0; nothing: kDefaultTimeout.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  CommunicationImplementation implementation = CommunicationImplementation::kAuto;
  /// A combination that the named operation does not support is an error instead of a fallback.
  bool strict = false;

  /// For the gradients that a strategy sums in minimize() and apply_gradients(), where they are
  /// float32 and dense: 16-bit types, integers and IndexedSlices travel as they are, float64 is
  /// refused. Other reductions are exact.
  WireCompression compression = WireCompression::kNone;
  /// For the same gradients, of all types.
  NonFinitePolicy non_finite = NonFinitePolicy::kIgnore;

  /// Throws kInvalidArgument naming the field.
  void validate() const;
  /// These options with the fields of `other` that are not default.
  CommunicationOptions merged_with(const CommunicationOptions& other) const;
  bool operator==(const CommunicationOptions&) const = default;
};

}  // namespace tutti
