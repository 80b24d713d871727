// One thing that an operation must do, as a plain value with a name that says all of it.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/cross_device_ops/case.h"

#include <array>
#include <charconv>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::conformance {
namespace {

constexpr std::array<std::string_view, 3> kShapes = {"local", "spread", "threads"};
constexpr std::array<std::string_view, 11> kChecks = {
    "values",  "special_values", "repeated", "concurrent", "slices",   "handles",
    "refused", "mismatch",       "deadline", "abort",      "peer_gone"};
constexpr std::array<std::string_view, kNumMismatchKinds> kMismatches = {
    "operation", "reduce_op", "dtype", "count", "shape", "root", "name", "order", "group"};
constexpr std::array<std::string_view, 7> kCollectives = {
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier"};

[[noreturn]] void fail_part(std::string_view id, std::string_view what, std::string_view got) {
  fail(ErrorCode::kInvalidArgument, "conformance case '", id, "': expected ", what, ", got '", got,
       "'; try an id as `tutti conform` prints it");
}

template <class Enum, std::size_t n>
Enum parse_name(const std::array<std::string_view, n>& names, std::string_view id,
                std::string_view text) {
  for (std::size_t i = 0; i < n; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  fail_part(id, "one of " + join(names), text);
}

std::uint64_t parse_number(std::string_view id, std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) fail_part(id, "a number", text);
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::string_view to_string(GroupShape shape) { return kShapes[static_cast<std::size_t>(shape)]; }
std::string_view to_string(Check check) { return kChecks[static_cast<std::size_t>(check)]; }
std::string_view to_string(MismatchKind kind) {
  return kMismatches[static_cast<std::size_t>(kind)];
}

bool has_parts(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kReduceScatter ||
         collective == Collective::kAllToAll;
}

Collective parse_collective(std::string_view text) {
  return parse_name<Collective>(kCollectives, text, text);
}

std::string Case::id() const {
  return concat(to_string(shape), "/", to_string(check), "/",
                kCollectives[static_cast<std::size_t>(collective)], "/", op, "/", dtype, "/", world,
                "x", count, "/", in_place ? "in_place" : "apart", "+", offset, "/",
                uneven ? "uneven" : "even", "/", variant, "/", seed);
}

Case Case::parse(std::string_view id) {
  const std::vector<std::string_view> parts = split(id, '/');
  if (parts.size() != 10) fail_part(id, "ten parts with / between them", id);
  const std::vector<std::string_view> size = split(parts[5], 'x');
  const std::vector<std::string_view> place = split(parts[6], '+');
  if (size.size() != 2) fail_part(id, "ranks and elements as in 3x17", parts[5]);
  if (place.size() != 2) fail_part(id, "a place and bytes as in apart+4", parts[6]);
  Case parsed;
  parsed.shape = parse_name<GroupShape>(kShapes, id, parts[0]);
  parsed.check = parse_name<Check>(kChecks, id, parts[1]);
  parsed.collective = parse_name<Collective>(kCollectives, id, parts[2]);
  parsed.op = parse_reduce_op(parts[3]);
  parsed.dtype = parse_dtype(parts[4]);
  parsed.world = static_cast<int>(parse_number(id, size[0]));
  parsed.count = parse_number(id, size[1]);
  parsed.in_place =
      parse_name<int>(std::array<std::string_view, 2>{"apart", "in_place"}, id, place[0]) == 1;
  parsed.offset = parse_number(id, place[1]);
  parsed.uneven =
      parse_name<int>(std::array<std::string_view, 2>{"even", "uneven"}, id, parts[7]) == 1;
  parsed.variant = static_cast<int>(parse_number(id, parts[8]));
  parsed.seed = parse_number(id, parts[9]);
  if (parsed.world < 1 || parsed.world > 64) fail_part(id, "1 to 64 ranks", size[0]);
  if (parsed.count > (std::size_t{1} << 28)) fail_part(id, "2^28 elements or fewer", size[1]);
  if (parsed.offset > 64) fail_part(id, "an offset of 64 bytes or less", place[1]);
  const int bound = parsed.check == Check::kMismatch ? kNumMismatchKinds : parsed.world;
  if (parsed.variant < 0 || parsed.variant >= bound) fail_part(id, "a smaller variant", parts[8]);
  return parsed;
}

}  // namespace tutti::conformance
