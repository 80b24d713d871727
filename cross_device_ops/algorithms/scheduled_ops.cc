// Algorithms of algorithms/ on the buffers of one process, and "auto".
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/scheduled_ops.h"

#include <algorithm>
#include <deque>

#include "cross_device_ops/gpu_reductions.h"
#include "cross_device_ops/reduce_to_all.h"
#include "tutti/core/error.h"

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

GpuSteps::GpuSteps(std::span<const ReplicaBuffer> buffers)
    : work_(*buffers.front().work), buffers_(buffers), readers_(buffers.size()) {
  work_.meet();
}

std::byte* GpuSteps::scratch(std::size_t rank, std::size_t bytes) {
  return work_.scratch(buffers_[rank].device, bytes);
}

void GpuSteps::sent(std::size_t rank, std::size_t peer) {
  sent_[{rank, peer}].push_back(work_.mark(buffers_[rank].device));
}

ReplicaBuffer GpuSteps::at(std::size_t rank, const RankMemory& memory, const Range& range) const {
  ReplicaBuffer buffer = buffers_[rank];
  buffer.data = const_cast<std::byte*>(memory.read(range));
  buffer.count = range.count;
  return buffer;
}

void GpuSteps::wait_for_readers(std::size_t rank, const ByteRange& range) {
  std::erase_if(readers_[rank], [&](const Reader& reader) {
    if (!reader.range.overlaps(range)) return false;
    work_.wait(buffers_[rank].device, *reader.end);
    return true;
  });
}

void GpuSteps::take(std::span<const RankMemory> memory, std::size_t rank, const Step& step,
                    std::size_t from, const Range& range) {
  std::deque<DeviceWork::Event>& messages = sent_[{from, rank}];
  TUTTI_CHECK(!messages.empty(), "gpu steps: rank ", rank, " receives what was not sent");
  work_.wait(buffers_[rank].device, *messages.front());
  messages.pop_front();
  if (step.range.count == 0) return;
  wait_for_readers(rank, memory[rank].bytes_of(step.range));
  const ReplicaBuffer received = at(from, memory[from], range);
  const ReplicaBuffer result = at(rank, memory[rank], step.range);
  if (step.kind == StepKind::kReceive) {
    work_.copy(received, result);
  } else {
    const ReplicaBuffer own = at(rank, memory[rank], step.own);
    const bool on_left = step.kind == StepKind::kReceiveOnLeft;
    const ReplicaBuffer operands[] = {on_left ? received : own, on_left ? own : received};
    work_.combine(memory[rank].op, operands, result);
  }
  readers_[from].push_back({memory[from].bytes_of(range), work_.mark(buffers_[rank].device)});
}

void GpuSteps::apply(std::span<const RankMemory> memory, std::size_t rank, const Schedule& schedule,
                     const Step& step) {
  const ReplicaBuffer result = at(rank, memory[rank], step.range);
  if (step.kind == StepKind::kCopy) {
    const ReplicaBuffer own = at(rank, memory[rank], step.own);
    if (own.data == result.data) return;
    wait_for_readers(rank, memory[rank].bytes_of(step.range));
    return work_.copy(own, result);
  }
  wait_for_readers(rank, memory[rank].bytes_of(step.range));
  std::vector<ReplicaBuffer> operands;
  for (const Range& operand : schedule.operands_of(step)) {
    operands.push_back(at(rank, memory[rank], operand));
  }
  work_.combine(memory[rank].op, operands, result);
}

}  // namespace tutti::internal

namespace tutti {
namespace {

// A segment is a launch or a copy: large ones, for those cost more than on the CPU.
constexpr std::size_t kGpuSegmentBytes = std::size_t{4} << 20;

const internal::Algorithm& named(std::string_view name) {
  const internal::Algorithm* const found = internal::find_algorithm(name);
  if (found == nullptr) fail(ErrorCode::kNotFound, "ScheduledOps: no algorithm '", name, "'");
  return *found;
}

}  // namespace

ScheduledOps::ScheduledOps(std::string_view algorithm) : algorithm_(named(algorithm)) {}

bool ScheduledOps::supports(ReduceOp op, DType dtype, DeviceType) const {
  if (is_half(dtype) && !algorithm_.combines_once) return false;
  return internal::can_combine(op, dtype);
}

void ScheduledOps::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  internal::CallShape shape{.size = static_cast<int>(buffers.size()),
                            .count = buffers.front().count,
                            .element_bytes = size_of(buffers.front().dtype)};
  const bool on_gpus = buffers.front().work != nullptr;
  if (on_gpus) shape.segment_bytes = kGpuSegmentBytes;
  std::vector<internal::Schedule> schedules;
  std::vector<internal::RankMemory> memory;
  for (const ReplicaBuffer& buffer : buffers) {
    schedules.push_back(internal::make_schedule(algorithm_, shape));
    memory.push_back(
        {.input = buffer.data, .output = buffer.data, .op = op, .dtype = buffer.dtype});
    ++shape.rank;
  }
  if (!on_gpus) {
    internal::StepWorker worker;
    return internal::run_in_lockstep(schedules, memory, worker);
  }
  internal::GpuSteps steps(buffers);
  internal::run_in_lockstep(schedules, memory, steps);
  buffers.front().work->meet();
}

bool AutoOps::supports(ReduceOp op, DType dtype, DeviceType) const {
  return internal::can_combine(op, dtype);
}

void AutoOps::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  const ReplicaBuffer& first = buffers.front();
  // The table was measured on CPUs; on GPUs canonical moves as few bytes as any.
  if (first.work) return internal::canonical_on_gpus(op, buffers);
  const AlgorithmQuery query{.size = static_cast<int>(buffers.size()),
                             .bytes = first.count * size_of(first.dtype),
                             .dtype = first.dtype,
                             .medium = Medium::kLocal};
  const std::string_view chosen = internal::chosen_name(query);
  log_.note(query, chosen);
  auto& operation = operations_[std::string(chosen)];
  if (!operation && chosen == "canonical") operation = std::make_unique<Canonical>();
  if (!operation) operation = std::make_unique<ScheduledOps>(chosen);
  operation->all_reduce_in_place(op, buffers);
}

}  // namespace tutti
