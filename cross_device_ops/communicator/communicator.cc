// Implements Communicator: the public collectives of one rank.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/communicator.h"

#include "cross_device_ops/communicator/communicator_state.h"
#include "cross_device_ops/reduce_to_all.h"
#include "tensor/buffer_allocator.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti {

using internal::CommunicatorState;

namespace {

using Counts = std::span<const std::size_t>;

BufferRef allocate_for_calls(BufferAllocator* shared, std::size_t bytes) {
  if (!shared) return BufferRef::allocate(bytes);
  try {
    return shared->allocate(bytes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResourceExhausted) throw;
    return BufferRef::allocate(bytes);  // correct, but each call then copies through shared memory
  }
}

// Returns the call for a public function. The call refers to the function's arguments.
CollectiveCall call_of(Collective collective, const ConstElements& input, const Elements& output,
                       ReduceOp op = ReduceOp::kSum, int root = 0, Counts counts = {},
                       Counts receive_counts = {}) {
  return {.collective = collective,
          .op = op,
          .root = root,
          .inputs = {&input, 1},
          .outputs = {&output, 1},
          .counts = counts,
          .receive_counts = receive_counts};
}

CollectiveCall broadcast_of(const Elements& data, int root) {
  return {.collective = Collective::kBroadcast, .root = root, .outputs = {&data, 1}};
}

}  // namespace

CollectiveHandle::CollectiveHandle(std::shared_ptr<internal::PendingCall> call)
    : call_(std::move(call)) {}
CollectiveHandle::CollectiveHandle(CollectiveHandle&&) noexcept = default;

CollectiveHandle& CollectiveHandle::operator=(CollectiveHandle&& other) noexcept {
  if (call_) call_->ended.wait_until(TimePoint::max());
  call_ = std::move(other.call_);
  return *this;
}

CollectiveHandle::~CollectiveHandle() {
  // Waits, because the caller may then free the memory; the call has its own deadline.
  if (call_) call_->ended.wait_until(TimePoint::max());
}

bool CollectiveHandle::test() const { return !call_ || call_->ended.is_set(); }

void CollectiveHandle::wait() {
  if (!call_) return;
  call_->ended.wait_until(TimePoint::max());
  if (call_->error) std::rethrow_exception(call_->error);
}

Communicator::Communicator(std::unique_ptr<internal::CollectiveEngine> engine,
                           const CommunicatorOptions& options)
    : state_(std::make_unique<CommunicatorState>(std::move(engine), options)) {
  if (options.plugin_options.empty()) return;
  // Throws for a built-in algorithm, which has no plugin options.
  make_cross_device_ops(options.algorithm, {}, options.plugin_options);
}
Communicator::~Communicator() = default;

int Communicator::rank() const { return state_->engine().rank(); }
int Communicator::size() const { return state_->engine().size(); }
std::string_view Communicator::name() const { return state_->engine().name(); }
Determinism Communicator::determinism() const { return state_->engine().determinism(); }
double Communicator::max_relative_error() const { return state_->engine().max_relative_error(); }
std::shared_ptr<BufferAllocator> Communicator::allocator() const {
  return state_->engine().allocator();
}

std::shared_ptr<std::byte> Communicator::allocate(std::size_t bytes) const {
  const BufferRef buffer = allocate_for_calls(allocator().get(), bytes);
  return {buffer->data(), [buffer](std::byte*) {}};
}

bool Communicator::supports(Collective collective, ReduceOp op, DType dtype) const {
  if (!combines(collective)) return state_->engine().supports(collective, ReduceOp::kSum, dtype);
  if (!internal::has_reduction(op, dtype)) return false;
  const DType combined = is_half(dtype) ? DType::kFloat32 : dtype;
  return state_->engine().supports(collective, op == ReduceOp::kMean ? ReduceOp::kSum : op,
                                   combined);
}

void Communicator::all_reduce(ReduceOp op, const Elements& data, const CallOptions& options,
                              const SourceLocation& where) {
  all_reduce(op, data, data, options, where);
}

void Communicator::all_reduce(ReduceOp op, std::span<const Elements> list,
                              const CallOptions& options, const SourceLocation& where) {
  state_->run({.op = op, .inputs = state_->as_inputs(list), .outputs = list}, options, where);
}

CollectiveHandle Communicator::start_all_reduce(ReduceOp op, const Elements& data,
                                                const CallOptions& options,
                                                const SourceLocation& where) {
  const ConstElements input = data;
  return state_->start(call_of(Collective::kAllReduce, input, data, op), options, where);
}

void Communicator::all_reduce(ReduceOp op, const ConstElements& input, const Elements& output,
                              const CallOptions& options, const SourceLocation& where) {
  state_->run(call_of(Collective::kAllReduce, input, output, op), options, where);
}

void Communicator::reduce(ReduceOp op, const ConstElements& input, const Elements& output, int root,
                          const CallOptions& options, const SourceLocation& where) {
  state_->run(call_of(Collective::kReduce, input, output, op, root), options, where);
}

CollectiveHandle Communicator::start_reduce(ReduceOp op, const ConstElements& input,
                                            const Elements& output, int root,
                                            const CallOptions& options,
                                            const SourceLocation& where) {
  return state_->start(call_of(Collective::kReduce, input, output, op, root), options, where);
}

void Communicator::broadcast(const Elements& data, int root, const CallOptions& options,
                             const SourceLocation& where) {
  state_->run(broadcast_of(data, root), options, where);
}

CollectiveHandle Communicator::start_broadcast(const Elements& data, int root,
                                               const CallOptions& options,
                                               const SourceLocation& where) {
  return state_->start(broadcast_of(data, root), options, where);
}

void Communicator::all_gather(const ConstElements& input, const Elements& output, Counts counts,
                              const CallOptions& options, const SourceLocation& where) {
  state_->run(call_of(Collective::kAllGather, input, output, ReduceOp::kSum, 0, counts), options,
              where);
}

CollectiveHandle Communicator::start_all_gather(const ConstElements& input, const Elements& output,
                                                Counts counts, const CallOptions& options,
                                                const SourceLocation& where) {
  return state_->start(call_of(Collective::kAllGather, input, output, ReduceOp::kSum, 0, counts),
                       options, where);
}

void Communicator::reduce_scatter(ReduceOp op, const ConstElements& input, const Elements& output,
                                  Counts counts, const CallOptions& options,
                                  const SourceLocation& where) {
  state_->run(call_of(Collective::kReduceScatter, input, output, op, 0, counts), options, where);
}

CollectiveHandle Communicator::start_reduce_scatter(ReduceOp op, const ConstElements& input,
                                                    const Elements& output, Counts counts,
                                                    const CallOptions& options,
                                                    const SourceLocation& where) {
  return state_->start(call_of(Collective::kReduceScatter, input, output, op, 0, counts), options,
                       where);
}

void Communicator::all_to_all(const ConstElements& input, const Elements& output,
                              Counts send_counts, Counts receive_counts, const CallOptions& options,
                              const SourceLocation& where) {
  state_->run(
      call_of(Collective::kAllToAll, input, output, ReduceOp::kSum, 0, send_counts, receive_counts),
      options, where);
}

CollectiveHandle Communicator::start_all_to_all(const ConstElements& input, const Elements& output,
                                                Counts send_counts, Counts receive_counts,
                                                const CallOptions& options,
                                                const SourceLocation& where) {
  return state_->start(
      call_of(Collective::kAllToAll, input, output, ReduceOp::kSum, 0, send_counts, receive_counts),
      options, where);
}

void Communicator::barrier(const CallOptions& options, const SourceLocation& where) {
  state_->run({.collective = Collective::kBarrier}, options, where);
}

void Communicator::refuse(Collective collective, const Error& reason, const CallOptions& options,
                          const SourceLocation& where) {
  state_->refuse({{.collective = collective}, options, where}, reason);
}

void Communicator::abort(const Error& reason) noexcept { state_->engine().abort(reason); }

CallProgress Communicator::progress() const {
  const std::optional<internal::RecordedCall> last = state_->recorder().last();
  if (!last) return {};
  CallProgress progress;
  progress.entered = last->header.sequence + 1;
  const bool waits = last->state == internal::CallState::kWaiting;
  progress.finished = waits ? last->header.sequence : progress.entered;
  progress.call = last->header.describe();
  progress.since = Clock::system().now() - last->begin;
  return progress;
}

}  // namespace tutti
