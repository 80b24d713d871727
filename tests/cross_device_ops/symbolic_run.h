// Runs schedules on symbols instead of numbers: what was combined with what, and who knew of whom.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <bitset>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "cross_device_ops/algorithms/algorithm.h"

namespace tutti::symbolic {

using Symbol = int;  // 0: nothing was ever written here

/// A value is a leaf (rank, element), or two values combined, left and right.
class Symbols {
 public:
  Symbol leaf(int rank, std::size_t element) {
    return number_of({-1 - rank, static_cast<int>(element)});
  }
  Symbol combined(Symbol left, Symbol right) { return number_of({left, right}); }
  /// "In each round neighbour 2i+1 is added to 2i, an odd last one passes up."
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
  /// How often each rank's element occurs; other elements count as rank -1.
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

using Knowledge = std::bitset<64>;  // of the ranks that are known to have verified

struct Rank {
  std::vector<Symbol> input, output, scratch;
  Knowledge verified;
  std::size_t next = 0;  // step
  std::vector<bool> heard_from;
};

/// All ranks of a call; run() with messages that carry symbols and knowledge.
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
      ASSERT_EQ(ranks[r].next, schedules_[r].steps.size()) << "rank " << r << " waits for ever";
      ranks[r].verified.set(r);  // every rank verifies before it returns
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
        // A header that comes with data has come when the data was received.
        if (internal::greets_with_data(schedules_[left], static_cast<int>(r))) {
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
      case StepKind::kReceiveOnLeft:
      case StepKind::kReceiveOnRight: {
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
            values[i] = step.kind == StepKind::kReceiveOnLeft
                            ? symbols_.combined(values[i], own.at(i))
                            : symbols_.combined(own.at(i), values[i]);
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

}  // namespace tutti::symbolic
