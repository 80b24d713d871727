// One thing that an operation must do, as a plain value with a name that says all of it; and plans
// of many.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/cross_device_ops/case.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <tuple>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/random.h"

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

// Which cases. Some counts meet every place and alignment; the others meet one of them each, by
// turns.

namespace {

constexpr int kWorlds[] = {1, 2, 3, 5, 7, 8, 16};
constexpr std::size_t kCountsInAllPlaces[] = {0, 1, 17, 1000};
constexpr std::size_t kCountsByTurns[] = {2, 3, 127, 4099, 65537, (std::size_t{1} << 20) + 1};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};
constexpr Collective kOnBuffers[] = {Collective::kAllReduce,     Collective::kReduce,
                                     Collective::kBroadcast,     Collective::kAllGather,
                                     Collective::kReduceScatter, Collective::kAllToAll};

bool is_defined(ReduceOp op, DType dtype) {
  if (op == ReduceOp::kMean) return is_floating(dtype);
  return dtype != DType::kBool || op == ReduceOp::kMin || op == ReduceOp::kMax;
}

/// Builds the list; `turn_` makes roots, places and offsets go round where not all are taken.
class Builder {
 public:
  Builder(GroupShape shape, const Plan& plan) : plan_(plan) { base_.shape = shape; }

  std::vector<Case> build() {
    base_.seed = plan_.seed;
    for (const Collective collective : kOnBuffers) {
      base_.collective = collective;
      for (const ReduceOp op : kOps) {
        base_.op = op;
        if (!combines(collective) && op != ReduceOp::kSum) continue;
        for (const DType dtype : kAllDTypes) {
          base_.dtype = dtype;
          if (combines(collective) && !is_defined(op, dtype)) {
            add(Check::kRefused, 2, 3);
          } else {
            add_values();
            add_groups();
          }
        }
      }
    }
    add_slices();
    if (base_.shape != GroupShape::kLocal) add_calls_of_ranks();
    add_mismatches();
    return std::move(list_);
  }

 private:
  bool can_be_in_place() const {
    return combines(base_.collective) || base_.collective == Collective::kAllGather;
  }

  void add(Check check, int world, std::size_t count) {
    if (count > plan_.max_count) return;
    Case next = base_;
    next.check = check;
    next.world = world;
    next.count = count;
    next.in_place = base_.collective == Collective::kBroadcast || next.in_place;
    if (has_root(base_.collective)) next.variant = static_cast<int>(++turn_) % world;
    list_.push_back(next);
  }

  /// The same with place, parts and offset by turns.
  void add_some(Check check, int world, std::size_t count) {
    const Case saved = base_;
    ++turn_;
    const std::size_t offsets[] = {0, 1, size_of(base_.dtype)};
    base_.in_place = can_be_in_place() && turn_ % 2 == 0;
    base_.uneven = has_parts(base_.collective) && turn_ / 2 % 2 == 0;
    base_.offset = offsets[turn_ % 3];
    add(check, world, count);
    base_ = saved;
  }

  void add_values() {
    const Case saved = base_;
    for (const int world : kWorlds) {
      for (const std::size_t count : kCountsInAllPlaces) {
        for (const bool in_place : {false, true}) {
          if (in_place && !can_be_in_place()) continue;
          for (const bool uneven : {false, true}) {
            if (uneven && !has_parts(base_.collective)) continue;
            for (const std::size_t offset :
                 {std::size_t{0}, std::size_t{1}, size_of(base_.dtype)}) {
              if (offset == 1 && size_of(base_.dtype) == 1 && base_.offset == 1) continue;
              base_.in_place = in_place;
              base_.uneven = uneven;
              base_.offset = offset;
              add(Check::kValues, world, count);
            }
            base_.offset = 0;
          }
        }
      }
      base_ = saved;
      for (const std::size_t count : kCountsByTurns) add_some(Check::kValues, world, count);
    }
  }

  void add_groups() {
    for (const int world : {2, 3, 5, 8}) add_some(Check::kRepeated, world, 1000);
    // Several groups meet in state that all reductions share, if they do at all.
    if (base_.op == ReduceOp::kSum || base_.dtype == DType::kFloat32) {
      add_some(Check::kConcurrent, 2, 4099);
      add_some(Check::kConcurrent, 3, 1000);
    }
    if (!combines(base_.collective) || !is_floating(base_.dtype)) return;
    for (const int world : {2, 3, 8}) {
      for (const std::size_t count : {64, 257}) add_some(Check::kSpecialValues, world, count);
    }
  }

  void add_slices() {
    if (base_.shape != GroupShape::kLocal) return;
    base_.collective = Collective::kAllReduce;
    for (const ReduceOp op : kOps) {
      for (const DType dtype : kAllDTypes) {
        if (!is_defined(op, dtype)) continue;
        base_.op = op;
        base_.dtype = dtype;
        for (const int world : {2, 3}) add(Check::kSlices, world, 50021);
      }
    }
  }

  void add_calls_of_ranks() {
    base_.op = ReduceOp::kSum;
    base_.dtype = DType::kFloat32;
    for (const Collective collective : kOnBuffers) {
      base_.collective = collective;
      for (const int world : {2, 3, 5, 8}) add_some(Check::kHandles, world, 1000);
      for (const int world : {2, 3, 5}) {
        for (const Check check : {Check::kDeadline, Check::kAbort, Check::kPeerGone}) {
          add(check, world, 1000);
          add(check, world, 65537);
        }
      }
    }
    base_.collective = Collective::kBarrier;
    for (const int world : {1, 2, 3, 5, 7, 8, 16}) add(Check::kValues, world, 0);
    for (const Check check : {Check::kDeadline, Check::kAbort, Check::kPeerGone}) {
      for (const int world : {2, 3, 5}) add(check, world, 0);
    }
  }

  void add_mismatches() {
    base_.op = ReduceOp::kSum;
    base_.dtype = DType::kFloat32;
    for (int kind = 0; kind < kNumMismatchKinds; ++kind) {
      const auto mismatch = static_cast<MismatchKind>(kind);
      if (base_.shape == GroupShape::kLocal && mismatch != MismatchKind::kDType &&
          mismatch != MismatchKind::kCount && mismatch != MismatchKind::kRoot) {
        continue;
      }
      base_.collective =
          mismatch == MismatchKind::kRoot ? Collective::kReduce : Collective::kAllReduce;
      for (const int world : {2, 3, 5}) {
        for (const std::size_t count : {16, 4096}) {
          add(Check::kMismatch, world, count);
          list_.back().variant = kind;
        }
      }
    }
  }

  const Plan& plan_;
  Case base_;
  std::size_t turn_ = 0;
  std::vector<Case> list_;
};

/// The first `size` in an order that takes the groups by turns and is random within each.
void take_sample(std::vector<Case>& list, const Plan& plan) {
  const RandomStream random(RandomKey{plan.seed, kUserPurpose, 17});
  using GroupKey = std::tuple<GroupShape, Check, Collective, ReduceOp, DType, int>;
  std::map<GroupKey, std::vector<std::pair<std::uint64_t, std::size_t>>> groups;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Case& c = list[i];
    const int kind = c.check == Check::kMismatch ? c.variant : 0;
    groups[{c.shape, c.check, c.collective, c.op, c.dtype, kind}].emplace_back(random.bits64(i), i);
  }
  std::vector<std::tuple<std::size_t, std::uint64_t, std::size_t>> order;  // turn, chance, place
  for (auto& [key, members] : groups) {
    std::ranges::sort(members);
    for (std::size_t turn = 0; turn < members.size(); ++turn) {
      order.emplace_back(turn, members[turn].first, members[turn].second);
    }
  }
  std::ranges::sort(order);
  order.resize(std::min(order.size(), std::max(plan.sample, groups.size())));
  std::vector<Case> taken;
  for (const auto& [turn, chance, place] : order) taken.push_back(list[place]);
  list = std::move(taken);
}

}  // namespace

std::vector<Case> cases(const Plan& plan) {
  std::vector<Case> list;
  for (const GroupShape shape : plan.shapes) {
    const std::vector<Case> more = Builder(shape, plan).build();
    list.insert(list.end(), more.begin(), more.end());
  }
  if (plan.sample > 0) take_sample(list, plan);
  std::ranges::stable_sort(list, {}, [](const Case& c) { return std::tuple(c.shape, c.world); });
  return list;
}

}  // namespace tutti::conformance
