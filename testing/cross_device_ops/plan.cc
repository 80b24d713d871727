// Which cases: all of them, or a seeded sample.
// SPDX-License-Identifier: Apache-2.0
//
// Some counts meet every place and alignment; the others meet one of them each, by turns.
#include "tutti/testing/cross_device_ops/plan.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "tutti/core/random.h"

namespace tutti::conformance {
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
