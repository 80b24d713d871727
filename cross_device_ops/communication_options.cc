// How collective operations are to be carried out.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/communication_options.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr std::pair<CommunicationImplementation, std::string_view> kNames[] = {
    {CommunicationImplementation::kAuto, "AUTO"},
    {CommunicationImplementation::kRing, "RING"},
    {CommunicationImplementation::kNccl, "NCCL"},
    {CommunicationImplementation::kMpi, "MPI"},
    {CommunicationImplementation::kCanonical, "CANONICAL"}};

}  // namespace

CommunicationImplementation parse_communication_implementation(std::string_view text) {
  std::string upper(text);
  std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return std::toupper(c); });
  for (const auto& [implementation, name] : kNames) {
    if (name == upper) return implementation;
  }
  fail(ErrorCode::kInvalidArgument,
       "communication implementation: expected one of AUTO, RING, NCCL, MPI, CANONICAL, got '",
       text, "'");
}

std::string_view to_string(CommunicationImplementation implementation) {
  for (const auto& [known, name] : kNames) {
    if (known == implementation) return name;
  }
  return "?";
}

void CommunicationOptions::validate() const {
  if (bytes_per_pack < 0) {
    fail(ErrorCode::kInvalidArgument,
         "CommunicationOptions: expected bytes_per_pack of 0 (automatic) or more, got ",
         bytes_per_pack);
  }
  if (timeout && timeout->count() <= 0) {
    fail(ErrorCode::kInvalidArgument, "CommunicationOptions: expected a positive timeout, got ",
         timeout->count(), " ms; leave it out for the default");
  }
}

CommunicationOptions CommunicationOptions::merged_with(const CommunicationOptions& other) const {
  CommunicationOptions merged = *this;
  if (other.bytes_per_pack != 0) merged.bytes_per_pack = other.bytes_per_pack;
  if (other.timeout) merged.timeout = other.timeout;
  if (other.implementation != CommunicationImplementation::kAuto) {
    merged.implementation = other.implementation;
  }
  if (other.strict) merged.strict = true;
  return merged;
}

}  // namespace tutti
