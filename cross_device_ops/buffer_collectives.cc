// The public functions of CrossDeviceOps on plain buffers: checks, alignment, MEAN, the fallback.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/names.h"
#include "cross_device_ops/buffer_call.h"
#include "cross_device_ops/call_checks.h"
#include "cross_device_ops/device_work.h"
#include "tutti/core/logging.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti {

namespace {

using internal::BufferCall;
using internal::StagedCall;

void divide_all(std::span<const ReplicaBuffer> buffers, std::size_t divisor) {
  for (const ReplicaBuffer& buffer : buffers) internal::divide(buffer, divisor);
}

std::vector<std::size_t> counts_of(std::span<const ReplicaBuffer> buffers) {
  std::vector<std::size_t> counts;
  for (const ReplicaBuffer& buffer : buffers) counts.push_back(buffer.count);
  return counts;
}

/// Equal parts of each input.
std::vector<std::size_t> equal_parts(std::string_view who, std::span<const ReplicaBuffer> inputs) {
  std::vector<std::size_t> counts;
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    internal::require(inputs[r].count % inputs.size() == 0, who,
                      ": equal parts need a multiple of ", inputs.size(), " elements, got ",
                      inputs[r].count, " from replica ", r, "; try counts");
    counts.insert(counts.end(), inputs.size(), inputs[r].count / inputs.size());
  }
  return counts;
}

/// Calls the operation; on GPUs with a DeviceWork, which is joined, or which `pending` gets.
void dispatch(CrossDeviceOps& ops, const BufferCall& call, PendingReduction* pending) {
  if (call.first().device.type == DeviceType::kCpu) return internal::carry_out_unchecked(ops, call);
  std::vector<ReplicaBuffer> inputs(call.inputs.begin(), call.inputs.end());
  std::vector<ReplicaBuffer> outputs(call.outputs.begin(), call.outputs.end());
  std::vector<Device> devices;
  for (const ReplicaBuffer& buffer : inputs) devices.push_back(buffer.device);
  for (const ReplicaBuffer& buffer : outputs) devices.push_back(buffer.device);
  auto work = std::make_unique<internal::DeviceWork>(devices);
  for (ReplicaBuffer& buffer : inputs) buffer.work = work.get();
  for (ReplicaBuffer& buffer : outputs) buffer.work = work.get();
  internal::carry_out_unchecked(
      ops, {call.collective, call.op, call.root, inputs, outputs, call.counts});
  if (!pending) return work->join();
  pending->add(std::move(work));
}

}  // namespace

void CrossDeviceOps::all_reduce_in_place(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                                         const CommunicationOptions& options) {
  start_all_reduce_in_place(op, buffers, options).join();
}

PendingReduction CrossDeviceOps::start_all_reduce_in_place(ReduceOp op,
                                                           std::span<const ReplicaBuffer> buffers,
                                                           const CommunicationOptions& options) {
  PendingReduction pending;
  carry_out({.op = op, .outputs = buffers}, options, &pending);
  return pending;
}

void CrossDeviceOps::all_reduce(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                std::span<const ReplicaBuffer> outputs,
                                const CommunicationOptions& options) {
  internal::check_buffers(name(), {.op = op, .inputs = inputs, .outputs = outputs}, false);
  for (std::size_t r = 0; r < inputs.size(); ++r) internal::copy_buffer(inputs[r], outputs[r]);
  all_reduce_in_place(op, outputs, options);
}

void CrossDeviceOps::reduce(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                            const ReplicaBuffer& output, int root,
                            const CommunicationOptions& options) {
  carry_out({Collective::kReduce, op, root, inputs, {&output, 1}, {}}, options);
}

void CrossDeviceOps::broadcast(std::span<const ReplicaBuffer> buffers, int root) {
  carry_out({Collective::kBroadcast, ReduceOp::kSum, root, {}, buffers, {}}, {});
}

void CrossDeviceOps::all_gather(std::span<const ReplicaBuffer> inputs,
                                std::span<const ReplicaBuffer> outputs) {
  const std::vector<std::size_t> counts = counts_of(inputs);
  carry_out({Collective::kAllGather, ReduceOp::kSum, 0, inputs, outputs, counts}, {});
}

void CrossDeviceOps::reduce_scatter(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                    std::span<const ReplicaBuffer> outputs,
                                    const CommunicationOptions& options) {
  const std::vector<std::size_t> counts = counts_of(outputs);
  carry_out({Collective::kReduceScatter, op, 0, inputs, outputs, counts}, options);
}

void CrossDeviceOps::all_to_all(std::span<const ReplicaBuffer> inputs,
                                std::span<const ReplicaBuffer> outputs,
                                std::span<const std::size_t> counts) {
  std::vector<std::size_t> used(counts.begin(), counts.end());
  if (counts.empty()) used = equal_parts(name(), inputs);
  carry_out({Collective::kAllToAll, ReduceOp::kSum, 0, inputs, outputs, used}, {});
}

void CrossDeviceOps::carry_out(const BufferCall& call, const CommunicationOptions& options,
                               PendingReduction* pending) {
  const bool sums_in_place = call.collective == Collective::kAllReduce;
  const bool in_place = sums_in_place || call.collective == Collective::kBroadcast;
  internal::check_buffers(name(), call, in_place);
  const auto is_empty = [](const ReplicaBuffer& buffer) { return buffer.count == 0; };
  if (std::ranges::all_of(call.outputs, is_empty)) return;
  if (call.inputs.size() == 1) return internal::copy_buffer(call.inputs[0], call.outputs[0]);
  // The mean of one value is that value.
  if (in_place && call.outputs.size() == 1 && !(sums_in_place && spans_processes())) return;
  require_buffers(call.inputs, call.outputs);
  internal::carry_out(*this, call, options, pending);
}

void internal::carry_out(CrossDeviceOps& ops, const BufferCall& call,
                         const CommunicationOptions& options, PendingReduction* pending) {
  const ReplicaBuffer& first = call.first();
  const bool later = pending && first.device.type == DeviceType::kGpu;
  const auto carry_out_on_copies = [&](DType dtype) {
    const auto staged = std::make_shared<const StagedCall>(call, dtype);
    carry_out(ops, staged->call(), options, pending);
    if (!later) return staged->write_back();
    pending->after_join([staged] { staged->write_back(); });
  };
  // Plain copies do not care where elements begin.
  if ((call.reduces() || ops.provides(call.collective)) && call.is_misaligned()) {
    return carry_out_on_copies(first.dtype);
  }
  if (!call.reduces()) return dispatch(ops, call, pending);

  BufferCall combining = call;
  if (call.op == ReduceOp::kMean) combining.op = ReduceOp::kSum;
  const bool supported = ops.supports(combining.op, first.dtype, first.device.type);
  if (is_half(first.dtype) && (call.op == ReduceOp::kMean || !supported)) {
    return carry_out_on_copies(DType::kFloat32);
  }
  if (supported) {
    dispatch(ops, combining, pending);
  } else {
    const std::string what = concat(ops.name(), ": ", combining.op, " of ", first.dtype, " on ",
                                    first.device, " is not supported");
    if (options.strict) {
      fail(ErrorCode::kUnimplemented, what,
           "; expected a supported combination; try without strict");
    }
    log_warning_once(what + "; reduction_to_one_device is used");
    const std::size_t n = call.num_members();
    const auto fallback = build_cross_device_ops(
        {.name = "reduction_to_one_device"},
        {.world_size = static_cast<int>(n), .local_devices = std::vector<Device>(n, first.device)});
    dispatch(*fallback, combining, pending);
  }
  if (call.op != ReduceOp::kMean) return;
  if (!later) return divide_all(call.outputs, call.num_members());
  const std::vector<ReplicaBuffer> outputs(call.outputs.begin(), call.outputs.end());
  pending->after_join([outputs, n = call.num_members()] { divide_all(outputs, n); });
}

void internal::carry_out_unchecked(CrossDeviceOps& ops, const BufferCall& call) {
  if (call.reduces()) {
    for (const ReplicaBuffer& each : call.inputs.empty() ? call.outputs : call.inputs) {
      ops.note_reduced(each.num_bytes());
    }
  }
  switch (call.collective) {
    case Collective::kAllReduce:
      return ops.all_reduce_buffers(call.op, call.outputs);
    case Collective::kReduce:
      // An empty span may point at memory of the caller, which is not an output.
      return ops.reduce_buffers(call.op, call.inputs,
                                call.outputs.empty() ? nullptr : call.outputs.data(), call.root);
    case Collective::kBroadcast:
      return ops.broadcast_buffers(call.outputs, call.root);
    case Collective::kAllGather:
      return ops.all_gather_buffers(call.inputs, call.outputs, call.counts);
    case Collective::kReduceScatter:
      return ops.reduce_scatter_buffers(call.op, call.inputs, call.outputs, call.counts);
    case Collective::kAllToAll:
      return ops.all_to_all_buffers(call.inputs, call.outputs, call.counts);
    case Collective::kBarrier:
      break;
  }
  fail(ErrorCode::kInternal, ops.name(), ": no such collective on buffers");
}

namespace {

using internal::BufferCopies;

ReplicaBuffer part_of(const ReplicaBuffer& buffer, std::size_t first, std::size_t count) {
  ReplicaBuffer part = buffer;
  part.data += first * size_of(buffer.dtype);
  part.count = count;
  part.id = 0;  // of the whole
  return part;
}

std::vector<ReplicaBuffer> parts_of(std::span<const ReplicaBuffer> buffers, std::size_t first,
                                    std::size_t count) {
  std::vector<ReplicaBuffer> parts;
  for (const ReplicaBuffer& buffer : buffers) parts.push_back(part_of(buffer, first, count));
  return parts;
}

using internal::copy_buffer;

/// On GPUs, where each device has a stream of its own: what follows begins after what was done to
/// any of the buffers.
void meet(std::span<const ReplicaBuffer> buffers) {
  if (buffers.front().work) buffers.front().work->meet();
}

/// Copies reach the members of this process alone.
void require_local(std::string_view who, std::string_view collective, bool all_are_local) {
  if (all_are_local) return;
  fail(ErrorCode::kUnimplemented, who, ": ", collective,
       " between processes cannot be composed of its all_reduce; expected one of its own");
}

}  // namespace

bool CrossDeviceOps::provides(Collective collective) const {
  return collective == Collective::kAllReduce;
}

void CrossDeviceOps::abort(const Error&) noexcept {}

void CrossDeviceOps::require_buffers(std::span<const ReplicaBuffer>,
                                     std::span<const ReplicaBuffer>) const {}

void CrossDeviceOps::reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                    const ReplicaBuffer* output, int) {
  const BufferCopies copies(inputs, inputs.front().dtype, BufferCopies::Content::kCopied);
  all_reduce_buffers(op, copies.buffers());
  if (!output) return;
  meet(inputs);
  copy_buffer(copies.buffers().front(), *output);
  meet(inputs);
}

void CrossDeviceOps::broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root) {
  require_local(name(), "broadcast", static_cast<std::size_t>(root) < buffers.size());
  const ReplicaBuffer& source = buffers[static_cast<std::size_t>(root)];
  meet(buffers);
  for (const ReplicaBuffer& buffer : buffers) copy_buffer(source, buffer);
  meet(buffers);
}

void CrossDeviceOps::all_gather_buffers(std::span<const ReplicaBuffer> inputs,
                                        std::span<const ReplicaBuffer> outputs,
                                        std::span<const std::size_t> counts) {
  require_local(name(), "all_gather", counts.size() == inputs.size());
  const std::vector<std::size_t> offsets = internal::offsets_of(counts);
  meet(inputs);
  for (const ReplicaBuffer& output : outputs) {
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      copy_buffer(inputs[r], part_of(output, offsets[r], counts[r]));
    }
  }
  meet(inputs);
}

void CrossDeviceOps::reduce_scatter_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                            std::span<const ReplicaBuffer> outputs,
                                            std::span<const std::size_t> counts) {
  require_local(name(), "reduce_scatter", counts.size() == inputs.size());
  const std::vector<std::size_t> offsets = internal::offsets_of(counts);
  // Part by part: the copies together are as large as one input. In place, an output is a part that
  // no later step reads.
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] == 0) continue;
    const BufferCopies copies(parts_of(inputs, offsets[r], counts[r]), inputs.front().dtype,
                              BufferCopies::Content::kCopied);
    all_reduce_buffers(op, copies.buffers());
    copy_buffer(copies.buffers()[r], outputs[r]);
  }
}

void CrossDeviceOps::all_to_all_buffers(std::span<const ReplicaBuffer> inputs,
                                        std::span<const ReplicaBuffer> outputs,
                                        std::span<const std::size_t> counts) {
  const std::size_t v = inputs.size();
  require_local(name(), "all_to_all", counts.size() == v * v);
  meet(inputs);
  std::vector<std::size_t> places(v);  // where the next part for each output goes
  for (std::size_t r = 0; r < v; ++r) {
    std::size_t first = 0;
    for (std::size_t s = 0; s < v; ++s) {
      const std::size_t count = counts[r * v + s];
      copy_buffer(part_of(inputs[r], first, count), part_of(outputs[s], places[s], count));
      first += count;
      places[s] += count;
    }
  }
  meet(inputs);
}

}  // namespace tutti
