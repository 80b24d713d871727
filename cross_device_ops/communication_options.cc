// How collective operations are to be carried out.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/communication_options.h"

#include <algorithm>
#include <cctype>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/core/error.h"

namespace tutti {
namespace {

template <class Value>
using Names = std::span<const std::pair<Value, std::string_view>>;

constexpr std::pair<CommunicationImplementation, std::string_view> kImplementations[] = {
    {CommunicationImplementation::kAuto, "AUTO"},
    {CommunicationImplementation::kRing, "RING"},
    {CommunicationImplementation::kNccl, "NCCL"},
    {CommunicationImplementation::kMpi, "MPI"},
    {CommunicationImplementation::kCanonical, "CANONICAL"}};
constexpr std::pair<WireCompression, std::string_view> kCompressions[] = {
    {WireCompression::kNone, "none"},
    {WireCompression::kBFloat16, "bfloat16"},
    {WireCompression::kFloat16, "float16"}};
constexpr std::pair<NonFinitePolicy, std::string_view> kPolicies[] = {
    {NonFinitePolicy::kIgnore, "ignore"},
    {NonFinitePolicy::kError, "error"},
    {NonFinitePolicy::kSkip, "skip"},
    {NonFinitePolicy::kZero, "zero"}};

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

template <class Value>
Value parse(const char* what, Names<Value> names, std::string_view text) {
  std::vector<std::string_view> known;
  for (const auto& [value, name] : names) {
    if (lower(name) == lower(text)) return value;
    known.push_back(name);
  }
  fail(ErrorCode::kInvalidArgument, what, ": expected one of ", join(known), ", got '", text, "'");
}

template <class Value>
std::string_view name_of(Names<Value> names, Value value) {
  const auto found = std::ranges::find(names, value, [](const auto& each) { return each.first; });
  return found == names.end() ? "?" : found->second;
}

void require_bytes(const char* field, std::int64_t bytes) {
  if (bytes >= 0) return;
  fail(ErrorCode::kInvalidArgument, "CommunicationOptions: expected ", field,
       " of 0 (automatic) or more, got ", bytes);
}

}  // namespace

CommunicationImplementation parse_communication_implementation(std::string_view text) {
  return parse<CommunicationImplementation>("communication implementation", kImplementations, text);
}
std::string_view to_string(CommunicationImplementation implementation) {
  return name_of<CommunicationImplementation>(kImplementations, implementation);
}

WireCompression parse_wire_compression(std::string_view text) {
  return parse<WireCompression>("compression", kCompressions, text);
}
std::string_view to_string(WireCompression compression) {
  return name_of<WireCompression>(kCompressions, compression);
}

NonFinitePolicy parse_non_finite_policy(std::string_view text) {
  return parse<NonFinitePolicy>("policy for values that are not finite", kPolicies, text);
}
std::string_view to_string(NonFinitePolicy policy) {
  return name_of<NonFinitePolicy>(kPolicies, policy);
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
