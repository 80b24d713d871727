// Widening, aligning and dividing around an engine's call.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cross_device_ops/buffer_call.h"
#include "cross_device_ops/communicator/call_request.h"

namespace tutti::internal {
namespace {

template <class AnyElements>
bool are_aligned(std::span<const AnyElements> list, DType dtype) {
  const std::uintptr_t low_bits = size_of(dtype) - 1;  // sizes are powers of two
  return std::ranges::none_of(list, [&](const AnyElements& elements) {
    return (reinterpret_cast<std::uintptr_t>(elements.data) & low_bits) != 0;
  });
}

}  // namespace

std::optional<Error> refusal_of(const CallRequest& request, const CollectiveEngine& engine) {
  const std::optional<DType>& wire = request.options.compression;
  if (!wire || engine.supports(request.collective, ReduceOp::kSum, *wire)) return std::nullopt;
  return Error(ErrorCode::kUnimplemented,
               concat("rank ", engine.rank(), ": ", engine.name(), ": adds ", *wire,
                      " in several steps, which would round each time; try canonical, or no "
                      "compression"));
}

PreparedCall::PreparedCall(const CallRequest& request, const CollectiveEngine& engine)
    : request_(request), engine_(engine) {
  call_.collective = request.collective;
  call_.root = request.root;
  call_.inputs = request.inputs;
  call_.outputs = request.outputs;
  call_.counts = request.counts;
  call_.receive_counts = request.receive_counts;
  if (request.collective == Collective::kBarrier) return;
  call_.dtype = request.dtype();
  call_.count = request.count();
  if (!combines(request.collective)) return;
  call_.op = request.op == ReduceOp::kMean ? ReduceOp::kSum : request.op;
  if (const std::optional<DType>& wire = request.options.compression) {
    replace(*wire);
    return;
  }
  const bool widens =
      is_half(call_.dtype) &&
      (request.op == ReduceOp::kMean || !engine.supports(call_.collective, call_.op, call_.dtype));
  const bool aligned =
      are_aligned(request.inputs, call_.dtype) &&
      (!request_.has_result(engine_.rank()) || are_aligned(request.outputs, call_.dtype));
  if (widens || !aligned) replace(widens ? DType::kFloat32 : call_.dtype);
}

std::byte* PreparedCall::scratch(std::size_t count, DType dtype) {
  return scratch_.emplace_back(Shape{static_cast<std::int64_t>(count)}, dtype, Device{}).data();
}

void PreparedCall::replace(DType dtype) {
  replaced_ = true;
  for (std::size_t i = 0; i < request_.inputs.size(); ++i) {
    const ConstElements& from = request_.inputs[i];
    const Elements copy(scratch(from.count, dtype), from.count, dtype);
    convert(buffer_of(from), buffer_of(copy));
    inputs_.push_back(copy);
    const std::size_t out = request_.outputs[i].count;
    const bool in_place = request_.collective != Collective::kReduceScatter;
    outputs_.push_back(in_place ? copy : Elements(scratch(out, dtype), out, dtype));
  }
  call_.dtype = dtype;
  call_.inputs = inputs_;
  call_.outputs = outputs_;
}

void PreparedCall::finish_results() {
  if (!combines(request_.collective) || !request_.has_result(engine_.rank())) return;
  const auto size = static_cast<std::size_t>(engine_.size());
  // A compressed sum has been rounded by its call; the quotient is not rounded again.
  const bool divides_last = request_.options.compression.has_value();
  const bool divides = request_.op == ReduceOp::kMean;
  for (std::size_t i = 0; i < call_.outputs.size(); ++i) {
    if (divides && !divides_last) divide(buffer_of(call_.outputs[i]), size);
    if (replaced_) convert(buffer_of(call_.outputs[i]), buffer_of(request_.outputs[i]));
    if (divides && divides_last) divide(buffer_of(request_.outputs[i]), size);
  }
}

}  // namespace tutti::internal
