// Runs the schedules of all ranks by one thread.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: a *lane* holds the ranges that one rank has sent to another and that have not been
// received. Ranks take turns; each goes on until it has to wait: for a message, or for a receiver
// that has not read what the next step overwrites.
#include "cross_device_ops/algorithms/lockstep.h"

#include <algorithm>
#include <deque>

namespace tutti::internal {
namespace {

class Lockstep {
 public:
  Lockstep(std::span<const Schedule> schedules, std::span<RankMemory> memory, StepWorker& worker)
      : schedules_(schedules),
        memory_(memory),
        worker_(worker),
        next_(schedules.size(), 0),
        lanes_(schedules.size() * schedules.size()) {
    for (std::size_t r = 0; r < memory.size(); ++r) {
      const std::size_t bytes = schedules[r].scratch_elements * size_of(memory[r].dtype);
      if (bytes > 0) memory[r].scratch = worker.scratch(r, bytes);
    }
  }

  void run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t r = 0; r < schedules_.size(); ++r) {
        while (next_[r] < schedules_[r].steps.size() && step(r)) moved = true;
      }
    }
    for (std::size_t r = 0; r < schedules_.size(); ++r) {
      TUTTI_CHECK(next_[r] == schedules_[r].steps.size(), "lockstep: rank ", r, " of ",
                  schedules_.size(), " waits for ever in step ", next_[r]);
    }
    TUTTI_CHECK(std::ranges::all_of(lanes_, [](const auto& lane) { return lane.empty(); }),
                "lockstep: a message was not received");
  }

 private:
  std::deque<Range>& lane(std::size_t from, std::size_t to) {
    return lanes_[from * schedules_.size() + to];
  }

  /// Whether a message that nobody has read yet lies in the way of writing to `range`.
  bool is_being_read(std::size_t rank, const Range& range) {
    const ByteRange wanted = memory_[rank].bytes_of(range);
    for (std::size_t to = 0; to < schedules_.size(); ++to) {
      for (const Range& sent : lane(rank, to)) {
        if (memory_[rank].bytes_of(sent).overlaps(wanted)) return true;
      }
    }
    return false;
  }

  /// Does the next step of a rank; false: it has to wait.
  bool step(std::size_t rank) {
    const Step& step = schedules_[rank].steps[next_[rank]];
    const bool stays = step.kind == StepKind::kCopy &&
                       memory_[rank].read(step.own) == memory_[rank].read(step.range);
    if (writes(step) && !stays && is_being_read(rank, step.range)) return false;
    if (step.kind == StepKind::kSend) {
      const auto peer = static_cast<std::size_t>(step.peer);
      lane(rank, peer).push_back(step.range);
      worker_.sent(rank, peer);
    } else if (receives(step)) {
      const auto from = static_cast<std::size_t>(step.peer);
      std::deque<Range>& messages = lane(from, rank);
      if (messages.empty()) return false;
      TUTTI_CHECK(messages.front().count == step.range.count, "lockstep: rank ", rank,
                  " receives another length than rank ", from, " has sent");
      worker_.take(memory_, rank, step, from, messages.front());
      messages.pop_front();
    } else if (step.kind != StepKind::kVerify) {
      worker_.apply(memory_, rank, schedules_[rank], step);
    }
    ++next_[rank];
    return true;
  }

  std::span<const Schedule> schedules_;
  std::span<RankMemory> memory_;
  StepWorker& worker_;
  std::vector<std::size_t> next_;
  std::vector<std::deque<Range>> lanes_;
};

}  // namespace

std::byte* StepWorker::scratch(std::size_t, std::size_t bytes) {
  scratch_.push_back(BufferRef::allocate(bytes));
  return scratch_.back()->data();
}

void StepWorker::sent(std::size_t, std::size_t) {}

void StepWorker::take(std::span<const RankMemory> memory, std::size_t rank, const Step& step,
                      std::size_t from, const Range& range) {
  memory[rank].take(step, memory[from].read(range));
}

void StepWorker::apply(std::span<const RankMemory> memory, std::size_t rank,
                       const Schedule& schedule, const Step& step) {
  memory[rank].apply(schedule, step);
}

void run_in_lockstep(std::span<const Schedule> schedules, std::span<RankMemory> memory,
                     StepWorker& worker) {
  Lockstep(schedules, memory, worker).run();
}

}  // namespace tutti::internal
