// The steps of algorithms/ on GPUs: kernels and copies between peers, ordered by events.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/gpu_steps.h"

#include "tutti/core/error.h"

namespace tutti::internal {

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
