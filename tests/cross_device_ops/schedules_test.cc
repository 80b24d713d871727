// Tests the schedules of all algorithms on symbols instead of numbers, and on the buffers of one
// process.
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <bitset>
#include <cmath>
#include <deque>
#include <map>

#include "cross_device_ops/algorithms/algorithm.h"
#include "tests/cross_device_ops/cdo_helpers.h"
#include "tests/cross_device_ops/engine_helpers.h"
#include "tutti/core/random.h"

namespace tutti::schedules_test {
using engine_tests::Traffic;
using engine_tests::traffic_of;
using internal::Algorithm;
using internal::algorithms;
using internal::CallShape;
using internal::find_algorithm;
using internal::make_schedule;
using internal::Schedule;

// Schedules run on symbols instead of numbers. A symbol shows which values were combined, and
// `Knowledge` contains the ranks that are known to have verified the call.

using Symbol = int;  // 0: never written

/// Set of expressions. An expression is a leaf (rank, element) or combines a left and a right
/// expression.
class Symbols {
 public:
  Symbol leaf(int rank, std::size_t element) {
    return number_of({-1 - rank, static_cast<int>(element)});
  }
  Symbol combined(Symbol left, Symbol right) { return number_of({left, right}); }
  /// Combines values as the canonical tree does: each round adds value 2i+1 to value 2i, and an
  /// unpaired last value enters the next round unchanged.
  Symbol by_rounds(std::vector<Symbol> values) {
    while (values.size() > 1) {
      std::vector<Symbol> next;
      for (std::size_t i = 0; i + 1 < values.size(); i += 2) {
        next.push_back(combined(values[i], values[i + 1]));
      }
      if (values.size() % 2 == 1) next.push_back(values.back());
      values = next;
    }
    return values[0];
  }
  /// Counts how often each rank's `element` occurs as a leaf. Leaves that are other elements are
  /// counted under rank -1.
  std::map<int, int> leaves(Symbol symbol, std::size_t element) const {
    std::map<int, int> result;
    collect(symbol, element, result);
    return result;
  }

 private:
  Symbol number_of(std::pair<int, int> parts) {
    const auto [entry, is_new] = numbers_.try_emplace(parts, static_cast<int>(parts_.size()) + 1);
    if (is_new) parts_.push_back(parts);
    return entry->second;
  }
  void collect(Symbol symbol, std::size_t element, std::map<int, int>& result) const {
    if (symbol == 0) {
      ++result[-1];
      return;
    }
    const auto [left, right] = parts_[static_cast<std::size_t>(symbol) - 1];
    if (left < 0) {
      ++result[right == static_cast<int>(element) ? -1 - left : -1];
    } else {
      collect(left, element, result);
      collect(right, element, result);
    }
  }

  std::map<std::pair<int, int>, Symbol> numbers_;
  std::vector<std::pair<int, int>> parts_;
};

using Knowledge = std::bitset<64>;  // ranks that are known to have verified the call

struct Rank {
  std::vector<Symbol> input, output, scratch;
  Knowledge verified;
  std::size_t next = 0;  // index of the next step
  std::vector<bool> heard_from;
};

/// All ranks of one collective call. In run(), they exchange messages that consist of symbols and
/// `Knowledge`.
class SymbolicRun {
 public:
  SymbolicRun(Symbols& symbols, std::vector<internal::Schedule> schedules)
      : symbols_(symbols), schedules_(std::move(schedules)), lanes_(size() * size()) {
    ranks.resize(size());
    for (std::size_t r = 0; r < size(); ++r) {
      ranks[r].scratch.resize(schedules_[r].scratch_elements);
      ranks[r].heard_from.resize(size());
    }
  }

  std::vector<Rank> ranks;
  std::size_t size() const { return schedules_.size(); }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < size(); ++r) {
        while (ranks[r].next < schedules_[r].steps.size() && step(r)) moved = true;
      }
    }
    for (std::size_t r = 0; r < size(); ++r) {
      ASSERT_EQ(ranks[r].next, schedules_[r].steps.size()) << "rank " << r << " waits indefinitely";
      ranks[r].verified.set(r);  // a rank verifies the call before it returns
    }
    for (const auto& lane : lanes_) ASSERT_TRUE(lane.empty()) << "a message was not received";
  }

 private:
  struct Message {
    std::vector<Symbol> symbols;
    Knowledge verified;
  };

  std::vector<Symbol>& space(Rank& rank, internal::Space space) {
    if (space == internal::Space::kInput) return rank.input;
    return space == internal::Space::kOutput ? rank.output : rank.scratch;
  }
  std::vector<Symbol> read(Rank& rank, const internal::Range& range) {
    if (range.count == 0) return {};
    const auto& from = space(rank, range.space);
    EXPECT_LE(range.first + range.count, from.size());
    return {from.begin() + static_cast<std::ptrdiff_t>(range.first),
            from.begin() + static_cast<std::ptrdiff_t>(range.first + range.count)};
  }
  void write(Rank& rank, const internal::Range& range, const std::vector<Symbol>& values) {
    if (range.count == 0) return;
    EXPECT_NE(range.space, internal::Space::kInput);
    auto& into = space(rank, range.space);
    ASSERT_LE(range.first + range.count, into.size());
    ASSERT_EQ(values.size(), range.count);
    std::ranges::copy(values, into.begin() + static_cast<std::ptrdiff_t>(range.first));
  }

  bool step(std::size_t r) {
    using internal::StepKind;
    Rank& rank = ranks[r];
    const internal::Schedule& schedule = schedules_[r];
    const internal::Step& step = schedule.steps[rank.next];
    const auto peer = static_cast<std::size_t>(step.peer);
    const std::size_t left = (r + size() - 1) % size();
    std::vector<Symbol> values;
    switch (step.kind) {
      case StepKind::kSend:
        lanes_[r * size() + peer].push_back({read(rank, step.range), rank.verified});
        break;
      case StepKind::kVerify:
        // A header that travels with data has arrived if its data was received.
        if (internal::begins_with_send(schedules_[left], static_cast<int>(r))) {
          EXPECT_TRUE(rank.heard_from[left]) << "rank " << r << " verifies too early";
        }
        rank.verified.set(r);
        break;
      case StepKind::kCopy:
        write(rank, step.range, read(rank, step.own));
        break;
      case StepKind::kCombine:
        values.resize(step.range.count);
        for (std::size_t i = 0; i < values.size(); ++i) {
          std::vector<Symbol> column;
          for (const internal::Range& operand : schedule.operands_of(step)) {
            column.push_back(read(rank, operand).at(i));
          }
          values[i] = symbols_.by_rounds(column);
        }
        write(rank, step.range, values);
        break;
      case StepKind::kReceive:
      case StepKind::kReceiveOnLeft: {
        auto& lane = lanes_[peer * size() + r];
        if (lane.empty()) return false;
        values = lane.front().symbols;
        rank.verified |= lane.front().verified;
        rank.heard_from[peer] = true;
        lane.pop_front();
        EXPECT_EQ(values.size(), step.range.count) << "rank " << r << " from " << peer;
        if (step.kind != StepKind::kReceive) {
          const std::vector<Symbol> own = read(rank, step.own);
          for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = symbols_.combined(values[i], own.at(i));
          }
        }
        write(rank, step.range, values);
        break;
      }
    }
    ++rank.next;
    return true;
  }

  Symbols& symbols_;
  std::vector<internal::Schedule> schedules_;
  std::vector<std::deque<Message>> lanes_;
};

constexpr int kWorlds[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33};
// Counts of 4-byte elements. The larger counts need several segments of 64 bytes; the smaller
// counts leave some ranks' chunks empty.
constexpr std::size_t kCounts[] = {0, 1, 5, 16, 37, 200};

CallShape shape_of(Collective collective, int size, std::size_t count) {
  return {.collective = collective,
          .size = size,
          .count = count,
          .element_bytes = 4,
          .segment_bytes = 64};
}

std::vector<Schedule> schedules_of(const Algorithm& algorithm, CallShape shape) {
  std::vector<Schedule> schedules;
  for (shape.rank = 0; shape.rank < shape.size; ++shape.rank) {
    schedules.push_back(make_schedule(algorithm, shape));
  }
  return schedules;
}

std::vector<Symbol> leaves_of(Symbols& symbols, int rank, std::size_t count) {
  std::vector<Symbol> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(symbols.leaf(rank, i));
  return values;
}

void expect_all_combined(Symbols& symbols, const Algorithm& algorithm, int size,
                         const std::vector<Symbol>& result, std::size_t first_element) {
  for (std::size_t i = 0; i < result.size(); ++i) {
    const std::size_t element = first_element + i;
    std::map<int, int> once;
    std::vector<Symbol> column;
    for (int r = 0; r < size; ++r) {
      once[r] = 1;
      column.push_back(symbols.leaf(r, element));
    }
    ASSERT_EQ(symbols.leaves(result[i], element), once) << "element " << element;
    if (algorithm.determinism == Determinism::kCanonical) {
      ASSERT_EQ(result[i], symbols.by_rounds(column)) << "element " << element;
    }
  }
}

// It suffices that n - 1 ranks verified: agreement between neighbours propagates around the ring.
void expect_everybody_verified(const SymbolicRun& run, std::size_t at_least) {
  for (const Rank& rank : run.ranks) ASSERT_GE(rank.verified.count(), at_least);
}

std::vector<std::size_t> uneven_counts(int size, std::size_t count) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(size), 0);
  for (std::size_t i = 0; i < count; ++i) ++counts[(i * i + i / 3) % counts.size()];
  return counts;
}

template <class Body>
void for_all_shapes(Collective collective, const Body& body) {
  for (const Algorithm& algorithm : algorithms()) {
    for (const int size : kWorlds) {
      for (const std::size_t count : kCounts) {
        // With large groups, tests only one count that fits into a segment and one that does not.
        if (size > 9 && count != 5 && count != 37) continue;
        SCOPED_TRACE(concat(algorithm.name, ", ", size, " ranks, ", count, " elements"));
        body(algorithm, shape_of(collective, size, count));
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(Schedules, AllReduceCombinesEachInputOnceInPromisedOrder) {
  for_all_shapes(Collective::kAllReduce, [](const Algorithm& algorithm, const CallShape& shape) {
    Symbols symbols;
    SymbolicRun run(symbols, schedules_of(algorithm, shape));
    for (int r = 0; r < shape.size; ++r) {
      Rank& rank = run.ranks[static_cast<std::size_t>(r)];
      rank.input = leaves_of(symbols, r, shape.count);
      rank.output.resize(shape.count);
    }
    run.run();
    for (const Rank& rank : run.ranks) {
      expect_all_combined(symbols, algorithm, shape.size, rank.output, 0);
    }
    expect_everybody_verified(run, static_cast<std::size_t>(shape.size) - 1);
  });
}

TEST(Schedules, ReduceYieldsTreeResultAtEveryRoot) {
  for_all_shapes(Collective::kReduce, [](const Algorithm& algorithm, CallShape shape) {
    for (shape.root = 0; shape.root < shape.size; shape.root += 1 + shape.size / 5) {
      Symbols symbols;
      SymbolicRun run(symbols, schedules_of(algorithm, shape));
      for (int r = 0; r < shape.size; ++r) {
        Rank& rank = run.ranks[static_cast<std::size_t>(r)];
        rank.input = leaves_of(symbols, r, shape.count);
        // outputs of the other ranks are empty
        if (r == shape.root) rank.output.resize(shape.count);
      }
      run.run();
      const Algorithm canonical = find_algorithm("canonical");
      expect_all_combined(symbols, canonical, shape.size,
                          run.ranks[static_cast<std::size_t>(shape.root)].output, 0);
      expect_everybody_verified(run, static_cast<std::size_t>(shape.size) - 1);
    }
  });
}

TEST(Schedules, BroadcastCopiesElementsFromRoot) {
  for_all_shapes(Collective::kBroadcast, [](const Algorithm& algorithm, CallShape shape) {
    for (shape.root = 0; shape.root < shape.size; shape.root += 1 + shape.size / 5) {
      Symbols symbols;
      SymbolicRun run(symbols, schedules_of(algorithm, shape));
      for (int r = 0; r < shape.size; ++r) {
        run.ranks[static_cast<std::size_t>(r)].output = leaves_of(symbols, r, shape.count);
      }
      run.run();
      for (const Rank& rank : run.ranks) {
        ASSERT_EQ(rank.output, leaves_of(symbols, shape.root, shape.count));
      }
      expect_everybody_verified(run, static_cast<std::size_t>(shape.size) - 1);
    }
  });
}

TEST(Schedules, AllGatherConcatenatesUnevenChunks) {
  for_all_shapes(Collective::kAllGather, [](const Algorithm& algorithm, CallShape shape) {
    const std::vector<std::size_t> counts = uneven_counts(shape.size, shape.count);
    shape.counts = counts;
    Symbols symbols;
    SymbolicRun run(symbols, schedules_of(algorithm, shape));
    std::vector<Symbol> expected;
    for (int r = 0; r < shape.size; ++r) {
      Rank& rank = run.ranks[static_cast<std::size_t>(r)];
      rank.input = leaves_of(symbols, r, counts[static_cast<std::size_t>(r)]);
      rank.output.resize(shape.count);
      expected.insert(expected.end(), rank.input.begin(), rank.input.end());
    }
    run.run();
    for (const Rank& rank : run.ranks) ASSERT_EQ(rank.output, expected);
    expect_everybody_verified(run, static_cast<std::size_t>(shape.size) - 1);
  });
}

TEST(Schedules, ReduceScatterCombinesUnevenChunks) {
  for_all_shapes(Collective::kReduceScatter, [](const Algorithm& algorithm, CallShape shape) {
    const std::vector<std::size_t> counts = uneven_counts(shape.size, shape.count);
    shape.counts = counts;
    Symbols symbols;
    SymbolicRun run(symbols, schedules_of(algorithm, shape));
    for (int r = 0; r < shape.size; ++r) {
      Rank& rank = run.ranks[static_cast<std::size_t>(r)];
      rank.input = leaves_of(symbols, r, shape.count);
      rank.output.resize(counts[static_cast<std::size_t>(r)]);
    }
    run.run();
    std::size_t first = 0;
    for (const Rank& rank : run.ranks) {
      expect_all_combined(symbols, algorithm, shape.size, rank.output, first);
      first += rank.output.size();
    }
    expect_everybody_verified(run, static_cast<std::size_t>(shape.size) - 1);
  });
}

TEST(Schedules, AllToAllExchangesUnevenChunksAndSynchronizes) {
  for (const int size : kWorlds) {
    const auto n = static_cast<std::size_t>(size);
    const auto sent = [](std::size_t from, std::size_t to) { return (from * 3 + to * to) % 5; };
    std::vector<Schedule> schedules;
    std::vector<std::size_t> totals;
    for (std::size_t r = 0; r < n; ++r) {
      std::vector<std::size_t> sends, receives;
      for (std::size_t s = 0; s < n; ++s) {
        sends.push_back(sent(r, s));
        receives.push_back(sent(s, r));
      }
      CallShape shape = shape_of(Collective::kAllToAll, size, 0);
      shape.rank = static_cast<int>(r);
      shape.counts = sends;
      shape.receive_counts = receives;
      schedules.push_back(make_schedule(find_algorithm("canonical"), shape));
      totals.push_back(std::accumulate(receives.begin(), receives.end(), std::size_t{0}));
    }
    Symbols symbols;
    SymbolicRun run(symbols, std::move(schedules));
    for (std::size_t r = 0; r < n; ++r) {
      run.ranks[r].input = leaves_of(symbols, static_cast<int>(r), 5 * n);
      run.ranks[r].output.resize(totals[r]);
    }
    run.run();
    for (std::size_t r = 0; r < n; ++r) {
      std::vector<Symbol> expected;
      for (std::size_t s = 0; s < n; ++s) {
        std::size_t first = 0;
        for (std::size_t t = 0; t < r; ++t) first += sent(s, t);
        for (std::size_t i = 0; i < sent(s, r); ++i) {
          expected.push_back(symbols.leaf(static_cast<int>(s), first + i));
        }
      }
      ASSERT_EQ(run.ranks[r].output, expected) << size << " ranks, rank " << r;
    }
    expect_everybody_verified(run, n);
  }
}

TEST(Schedules, BarrierComparesHeadersOfAllRanks) {
  for (const int size : kWorlds) {
    Symbols symbols;
    const CallShape shape = shape_of(Collective::kBarrier, size, 0);
    SymbolicRun run(symbols, schedules_of(find_algorithm("ring"), shape));
    run.run();
    // Each verified rank has compared its header with its left neighbour's, so n - 1 verified ranks
    // have compared all headers.
    expect_everybody_verified(run, static_cast<std::size_t>(size) - 1);
  }
}

// Numbers of messages and elements that one rank sends in an all_reduce. formula() follows the
// comments at the beginning of the algorithms' sources, and requires counts that divide evenly.
struct Cost {
  std::size_t messages;
  std::size_t elements;
};

Cost formula(std::string_view name, std::size_t n, std::size_t r, std::size_t count,
             std::size_t segment) {
  const auto segments = [&](std::size_t run) {
    return std::max<std::size_t>(1, (run + segment - 1) / segment);
  };
  const std::size_t k = segments(count);
  if (name == "canonical" && n == 2 && count * 4 <= 65536) return {1, count};
  if (name == "canonical" || name == "ring") {
    return {2 * (n - 1) * segments(count / n), 2 * (n - 1) * (count / n)};
  }
  std::size_t group = n;
  if (name == "hierarchical_copy") {
    for (group = 1; 4 * group * group <= n;) group *= 2;
  }
  const std::size_t leaders = (n + group - 1) / group;
  const std::size_t own_group = std::min(group, n - r / group * group);
  std::size_t transfers = r % group == 0 ? own_group : 1;
  if (r == 0) transfers = leaders + own_group - 2;
  return {transfers * k, transfers * count};
}

TEST(Schedules, AllReduceCostsMatchFormula) {
  for (const Algorithm& algorithm : algorithms()) {
    for (const std::size_t n : {2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33}) {
      // For these counts, chunks and slices are multiples of 64 bytes, in one or several segments.
      for (const std::size_t count : {n * 32 * 16, n * 32 * 64}) {
        CallShape shape = shape_of(Collective::kAllReduce, static_cast<int>(n), count);
        shape.segment_bytes = 2048;
        const std::vector<Schedule> schedules = schedules_of(algorithm, shape);
        for (std::size_t r = 0; r < n; ++r) {
          const Cost expected = formula(algorithm.name, n, r, count, 512);
          const Traffic traffic = traffic_of(schedules[r]);
          EXPECT_EQ(traffic.messages, expected.messages) << algorithm.name << " " << n << " " << r;
          EXPECT_EQ(traffic.elements, expected.elements) << algorithm.name << " " << n << " " << r;
        }
      }
    }
  }
}

TEST(Schedules, CostsOfOtherCollectivesMatchFormula) {
  for (const std::size_t n : {2, 3, 5, 8, 9, 17}) {
    const std::size_t closing = std::bit_width(n - 2);  // ceil(log2(n - 1))
    const std::size_t count = n * 16;
    const std::vector<std::size_t> counts(n, 16);
    CallShape shape = shape_of(Collective::kBarrier, static_cast<int>(n), count);
    shape.counts = counts;
    shape.receive_counts = counts;
    shape.segment_bytes = 1 << 20;
    shape.rank = 1;
    const auto cost = [&](const char* name, Collective collective) {
      shape.collective = collective;
      const Traffic traffic = traffic_of(make_schedule(find_algorithm(name), shape));
      return std::pair(traffic.messages, traffic.elements);
    };
    using Pair = std::pair<std::size_t, std::size_t>;
    for (const char* name : {"canonical", "ring"}) {
      EXPECT_EQ(cost(name, Collective::kAllGather), Pair(n - 1, (n - 1) * 16));
      EXPECT_EQ(cost(name, Collective::kReduceScatter), Pair(n - 1, (n - 1) * 16));
    }
    EXPECT_EQ(cost("ring", Collective::kBarrier), Pair(closing, 0));
    EXPECT_EQ(cost("canonical", Collective::kReduce), Pair(n - 1 + 1 + closing, count));
    // rank 1 is a leaf of the tree
    EXPECT_EQ(cost("ring", Collective::kBroadcast), Pair(closing, 0));
    EXPECT_EQ(cost("ring", Collective::kAllToAll),
              Pair(n - 1 + std::bit_width(n - 1), (n - 1) * 16));
  }
}

TEST(Schedules, AreDeterminedByCallShape) {
  for (const Algorithm& algorithm : algorithms()) {
    CallShape shape = shape_of(Collective::kAllReduce, 6, 1000);
    shape.rank = 3;
    const Schedule a = make_schedule(algorithm, shape);
    const Schedule b = make_schedule(algorithm, shape);
    ASSERT_EQ(a.steps.size(), b.steps.size());
    for (std::size_t i = 0; i < a.steps.size(); ++i) {
      EXPECT_EQ(a.steps[i].kind, b.steps[i].kind);
      EXPECT_EQ(a.steps[i].peer, b.steps[i].peer);
      EXPECT_EQ(a.steps[i].range.first, b.steps[i].range.first);
    }
  }
}

using namespace cdo_tests;

std::vector<Tensor> values_for_ring(int replicas, std::size_t count) {
  std::vector<Tensor> values;
  for (int r = 0; r < replicas; ++r) {
    const RandomStream stream(RandomKey{3, kUserPurpose, static_cast<std::uint64_t>(r)});
    std::vector<float> elements(count);
    for (std::size_t i = 0; i < count; ++i) {
      elements[i] = static_cast<float>(stream.normal(i) * std::pow(10.0, i % 6));
    }
    values.push_back(Tensor::from<float>({static_cast<std::int64_t>(count)}, elements, cpu(r)));
  }
  return values;
}

TEST(RingAllReduce, SumsWhenCountIsNotDivisibleByReplicaCount) {
  for (const int replicas : {2, 3, 5, 8}) {
    for (const std::size_t count : {1, 2, 7, 8, 64, 1001}) {
      const PerReplica<Tensor> value(values_for_ring(replicas, count));
      const PerReplica<Tensor> sum = make_op("ring", replicas)->all_reduce(ReduceOp::kSum, value);
      const auto v = static_cast<std::size_t>(replicas);
      for (std::size_t chunk = 0; chunk < v; ++chunk) {
        for (std::size_t i = chunk * count / v; i < (chunk + 1) * count / v; ++i) {
          float expected = value[chunk].host_span<float>()[i];
          for (std::size_t step = 1; step < v; ++step) {
            expected += value[(chunk + step) % v].host_span<float>()[i];
          }
          for (const Tensor& result : sum) ASSERT_EQ(result.host_span<float>()[i], expected);
        }
      }
    }
  }
}

TEST(ScheduledOps, HierarchicalCopyMatchesTreeForAnyReplicaCount) {
  for (int replicas = 2; replicas <= 20; ++replicas) {
    for (const std::size_t count : {50, 3001}) {
      const std::vector<Tensor> values = values_for_ring(replicas, count);
      const Tensor expected = reduce_tensors_along_tree(ReduceOp::kSum, values, {});
      const auto sums =
          make_op("hierarchical_copy", replicas)->all_reduce(ReduceOp::kSum, PerReplica(values));
      for (const Tensor& sum : sums) expect_same_bits(sum, expected);
    }
  }
}

TEST(ScheduledOps, ProcessLargeBuffersInSegments) {
  const std::vector<Tensor> values = values_for_ring(5, 200'003);
  const Tensor expected = reduce_tensors_along_tree(ReduceOp::kSum, values, {});
  const auto sums = make_op("hierarchical_copy", 5)->all_reduce(ReduceOp::kSum, PerReplica(values));
  for (const Tensor& sum : sums) expect_same_bits(sum, expected);
}

}  // namespace tutti::schedules_test
