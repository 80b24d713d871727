// Compile options of XLA as bytes of their protocol buffer.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/compile_options.h"

#include <string_view>

namespace tutti::internal {
namespace {

/// Protocol buffers as far as compile options need them: numbers, and bytes of other messages.
struct WireMessage {
  std::string bytes;

  void add_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    bytes += static_cast<char>(value);
  }
  void add_number(std::uint64_t field, std::uint64_t value) {
    add_varint(field << 3);
    add_varint(value);
  }
  void add_bytes(std::uint64_t field, std::string_view value) {
    add_varint(field << 3 | 2);
    add_varint(value.size());
    bytes += value;
  }
};

/// DeviceAssignmentProto: which device runs which replica.
WireMessage device_assignment(const std::vector<std::int64_t>& ids) {
  WireMessage numbers, computation, assignment;
  for (const std::int64_t id : ids) numbers.add_varint(static_cast<std::uint64_t>(id));
  computation.add_bytes(1, numbers.bytes);
  assignment.add_number(1, ids.size());
  assignment.add_number(2, 1);  // partitions
  assignment.add_bytes(3, computation.bytes);
  return assignment;
}

}  // namespace

std::string compile_options(const std::vector<std::int64_t>& ids, bool on_cpu) {
  WireMessage build;  // ExecutableBuildOptionsProto; a plugin aborts without both numbers
  build.add_number(4, ids.size());
  build.add_number(5, 1);  // partitions
  build.add_bytes(9, device_assignment(ids).bytes);
  WireMessage options;
  options.add_bytes(3, build.bytes);
  if (!on_cpu) return options.bytes;
  WireMessage no, entry;  // XLA's CPU compiler otherwise loses NaN in maxima and minima
  no.add_number(2, 0);
  entry.add_bytes(1, "xla_cpu_enable_fast_min_max");
  entry.add_bytes(2, no.bytes);
  options.add_bytes(7, entry.bytes);
  return options.bytes;
}

}  // namespace tutti::internal
