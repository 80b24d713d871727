// Execution of schedules on the buffers of one process.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <deque>
#include <vector>

#include "cross_device_ops/algorithms/algorithm.h"
#include "cross_device_ops/device_work.h"
#include "tutti/core/error.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {
namespace {

/// Runner for the schedules of all ranks: runs schedules[r] on memory[r] and allocates its scratch;
/// buffers[r] is rank r's buffer. Messages are not copied: a receiver reads its sender's memory,
/// and a step that would overwrite unread memory waits. On GPUs, the steps are queued in streams.
/// Each step waits only for the message that it receives and for the readers of the memory that it
/// overwrites, so that the devices work concurrently.
class Lockstep {
 public:
  Lockstep(std::span<const Schedule> schedules, std::span<RankMemory> memory,
           std::span<const ReplicaBuffer> buffers)
      : schedules_(schedules),
        memory_(memory),
        buffers_(buffers),
        work_(buffers.front().work),
        next_(schedules.size(), 0),
        lanes_(schedules.size() * schedules.size()),
        readers_(schedules.size()) {
    if (work_) work_->barrier();
    for (std::size_t r = 0; r < memory.size(); ++r) {
      const std::size_t bytes = schedules[r].scratch_elements * size_of(memory[r].dtype);
      if (bytes > 0) memory[r].scratch = scratch(r, bytes);
    }
  }

  /// Runs the schedules of all ranks. Throws kInternal if they do not match.
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
                  schedules_.size(), " can never finish step ", next_[r]);
    }
    TUTTI_CHECK(std::ranges::all_of(lanes_, [](const auto& lane) { return lane.empty(); }),
                "lockstep: a message was not received");
    if (work_) work_->barrier();
  }

 private:
  struct Message {
    Range range;              // in the sender's memory
    DeviceWork::Event event;  // on GPUs: marks when the range has been written
  };
  struct Reader {
    ByteRange range;
    DeviceWork::Event end;
  };

  std::byte* scratch(std::size_t rank, std::size_t bytes) {
    if (work_) return work_->scratch(buffers_[rank].device, bytes);
    scratch_.push_back(BufferRef::allocate(bytes));
    return scratch_.back()->data();
  }

  std::deque<Message>& lane(std::size_t from, std::size_t to) {
    return lanes_[from * schedules_.size() + to];
  }

  /// Returns true if `range`, which is to be written, overlaps an unread message.
  bool is_being_read(std::size_t rank, const Range& range) {
    const ByteRange wanted = memory_[rank].bytes_of(range);
    for (std::size_t to = 0; to < schedules_.size(); ++to) {
      for (const Message& sent : lane(rank, to)) {
        if (memory_[rank].bytes_of(sent.range).overlaps(wanted)) return true;
      }
    }
    return false;
  }

  /// Executes the next step of a rank; returns false if the rank has to wait.
  bool step(std::size_t rank) {
    const Step& step = schedules_[rank].steps[next_[rank]];
    const bool stays = step.kind == StepKind::kCopy &&
                       memory_[rank].read(step.own) == memory_[rank].read(step.range);
    if (writes(step) && !stays && is_being_read(rank, step.range)) return false;
    if (step.kind == StepKind::kSend) {
      lane(rank, static_cast<std::size_t>(step.peer))
          .push_back({step.range, work_ ? work_->mark(buffers_[rank].device) : nullptr});
    } else if (receives(step)) {
      const auto from = static_cast<std::size_t>(step.peer);
      std::deque<Message>& messages = lane(from, rank);
      if (messages.empty()) return false;
      const Message& message = messages.front();
      TUTTI_CHECK(message.range.count == step.range.count, "lockstep: rank ", rank,
                  " expected a message of a different length than rank ", from, " sent");
      if (work_) {
        receive_on_gpu(rank, step, from, message);
      } else {
        memory_[rank].take(step, memory_[from].read(message.range));
      }
      messages.pop_front();
    } else if (step.kind != StepKind::kVerify && !stays) {
      work_ ? apply_on_gpu(rank, step) : memory_[rank].apply(schedules_[rank], step);
    }
    ++next_[rank];
    return true;
  }

  ReplicaBuffer at(std::size_t rank, const Range& range) const {
    ReplicaBuffer buffer = buffers_[rank];
    buffer.data = const_cast<std::byte*>(memory_[rank].read(range));
    buffer.count = range.count;
    return buffer;
  }

  /// Returns a rank's `range` as a buffer to write to. The rank's device waits for all earlier
  /// reads of this range.
  ReplicaBuffer writable(std::size_t rank, const Range& range) {
    const ByteRange bytes = memory_[rank].bytes_of(range);
    std::erase_if(readers_[rank], [&](const Reader& reader) {
      if (!reader.range.overlaps(bytes)) return false;
      work_->wait(buffers_[rank].device, *reader.end);
      return true;
    });
    return at(rank, range);
  }

  void receive_on_gpu(std::size_t rank, const Step& step, std::size_t from,
                      const Message& message) {
    work_->wait(buffers_[rank].device, *message.event);
    if (step.range.count == 0) return;
    const ReplicaBuffer received = at(from, message.range);
    const ReplicaBuffer result = writable(rank, step.range);
    if (step.kind == StepKind::kReceive) {
      work_->copy(received, result);
    } else {
      const ReplicaBuffer operands[] = {received, at(rank, step.own)};
      work_->combine(memory_[rank].op, operands, result);
    }
    readers_[from].push_back(
        {memory_[from].bytes_of(message.range), work_->mark(buffers_[rank].device)});
  }

  void apply_on_gpu(std::size_t rank, const Step& step) {
    const ReplicaBuffer result = writable(rank, step.range);
    if (step.kind == StepKind::kCopy) return work_->copy(at(rank, step.own), result);
    std::vector<ReplicaBuffer> operands;
    for (const Range& operand : schedules_[rank].operands_of(step)) {
      operands.push_back(at(rank, operand));
    }
    work_->combine(memory_[rank].op, operands, result);
  }

  const std::span<const Schedule> schedules_;
  const std::span<RankMemory> memory_;
  const std::span<const ReplicaBuffer> buffers_;
  DeviceWork* const work_;  // null on CPUs
  std::vector<std::size_t> next_;
  std::vector<std::deque<Message>> lanes_;
  std::vector<std::vector<Reader>> readers_;  // on GPUs, indexed by the rank whose memory is read
  std::vector<BufferRef> scratch_;            // used on hosts
};

}  // namespace
}  // namespace tutti::internal

namespace tutti {
namespace {

// On a GPU, each segment needs a kernel launch or a copy with a high fixed cost, so segments are
// large.
constexpr std::size_t kGpuSegmentBytes = std::size_t{4} << 20;

class ScheduledOps final : public CrossDeviceOps {
 public:
  explicit ScheduledOps(const internal::Algorithm& algorithm) : algorithm_(algorithm) {}
  std::string_view name() const override { return algorithm_.name; }
  bool supports(ReduceOp op, DType dtype, DeviceType) const override {
    return algorithm_.supports(op, dtype);
  }
  Determinism determinism() const override { return algorithm_.determinism; }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override {
    const ReplicaBuffer& first = buffers.front();
    internal::CallShape shape{.size = static_cast<int>(buffers.size()),
                              .count = first.count,
                              .element_bytes = size_of(first.dtype)};
    if (first.work) shape.segment_bytes = kGpuSegmentBytes;
    std::vector<internal::Schedule> schedules;
    std::vector<internal::RankMemory> memory;
    for (const ReplicaBuffer& buffer : buffers) {
      schedules.push_back(internal::make_schedule(algorithm_, shape));
      memory.push_back(
          {.input = buffer.data, .output = buffer.data, .op = op, .dtype = buffer.dtype});
      ++shape.rank;
    }
    internal::Lockstep(schedules, memory, buffers).run();
  }

 private:
  const internal::Algorithm& algorithm_;
};

}  // namespace

std::unique_ptr<CrossDeviceOps> scheduled_ops(std::string_view algorithm) {
  return std::make_unique<ScheduledOps>(internal::find_algorithm(algorithm));
}

}  // namespace tutti
