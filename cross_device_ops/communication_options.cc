// Names of collectives and guarantees, and the implementation of communication options.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/communication_options.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "core/names.h"
#include "tutti/core/error.h"
#include "tutti/cross_device_ops/collective.h"

namespace tutti {
namespace {

using internal::name_in;

constexpr std::string_view kImplementations[] = {"AUTO", "RING", "NCCL", "MPI", "CANONICAL"};
constexpr std::string_view kCompressions[] = {"none", "bfloat16", "float16"};
constexpr std::string_view kPolicies[] = {"ignore", "error", "skip"};

/// Returns the enumerator with that name, ignoring case.
template <class Enum, std::size_t n>
Enum value_named(const std::string_view (&names)[n], std::string_view text, const char* what) {
  const auto found = std::ranges::find(names, internal::lower_case(text), internal::lower_case);
  if (found != std::end(names)) return static_cast<Enum>(found - names);
  const std::vector<std::string_view> known(std::begin(names), std::end(names));
  fail(ErrorCode::kInvalidArgument, what, ": expected one of ", join(known), ", got '", text, "'");
}

void require_bytes(const char* field, std::int64_t bytes) {
  if (bytes >= 0) return;
  fail(ErrorCode::kInvalidArgument, "CommunicationOptions: expected ", field,
       " >= 0 (0: automatic), got ", bytes);
}

}  // namespace

std::string_view to_string(Collective collective) {
  static constexpr std::string_view kNames[] = {
      "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier"};
  return name_in(kNames, collective, "Collective");
}

std::string_view to_string(Determinism determinism) {
  static constexpr std::string_view kNames[] = {"none", "run-to-run", "canonical"};
  return name_in(kNames, determinism, "Determinism");
}

bool combines(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

bool has_root(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kBroadcast;
}

CommunicationImplementation parse_communication_implementation(std::string_view text) {
  return value_named<CommunicationImplementation>(kImplementations, text,
                                                  "communication implementation");
}
std::string_view to_string(CommunicationImplementation implementation) {
  return name_in(kImplementations, implementation, "CommunicationImplementation");
}

WireCompression parse_wire_compression(std::string_view text) {
  return value_named<WireCompression>(kCompressions, text, "compression");
}
std::string_view to_string(WireCompression compression) {
  return name_in(kCompressions, compression, "WireCompression");
}

NonFinitePolicy parse_non_finite_policy(std::string_view text) {
  return value_named<NonFinitePolicy>(kPolicies, text, "policy for values that are not finite");
}
std::string_view to_string(NonFinitePolicy policy) {
  return name_in(kPolicies, policy, "NonFinitePolicy");
}

void CommunicationOptions::validate() const {
  require_bytes("bytes_per_pack", bytes_per_pack);
  require_bytes("first_bytes_per_pack", first_bytes_per_pack);
  if (timeout && timeout->count() <= 0) {
    fail(ErrorCode::kInvalidArgument, "CommunicationOptions: expected a positive timeout, got ",
         timeout->count(), " ms; leave it out for the default");
  }
}

CommunicationOptions CommunicationOptions::merged_with(const CommunicationOptions& other) const {
  CommunicationOptions merged = *this;
  if (other.bytes_per_pack != 0) merged.bytes_per_pack = other.bytes_per_pack;
  if (other.first_bytes_per_pack != 0) merged.first_bytes_per_pack = other.first_bytes_per_pack;
  if (other.timeout) merged.timeout = other.timeout;
  if (other.implementation != CommunicationImplementation::kAuto) {
    merged.implementation = other.implementation;
  }
  if (other.strict) merged.strict = true;
  if (other.compression != WireCompression::kNone) merged.compression = other.compression;
  if (other.non_finite != NonFinitePolicy::kIgnore) merged.non_finite = other.non_finite;
  return merged;
}

}  // namespace tutti
