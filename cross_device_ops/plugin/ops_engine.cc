// Headers by messages, data by an operation.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/plugin/ops_engine.h"

#include <sys/random.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/algorithms/message_engine.h"
#include "tutti/cross_device_ops/buffer_call.h"
#include "tutti/cross_device_ops/packed_call.h"
#include "tutti/cross_device_ops/plugin/abort_watch.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {
namespace {

// Of messages beside those of the message engine: its tags never end in this number.
constexpr std::uint64_t kNonceTag = AbortWatch::kTag - 1;

ReplicaBuffer buffer_of(const Elements& elements) {
  return {elements.data, elements.count, elements.dtype, {}};
}
/// An input: operations do not write to it.
ReplicaBuffer buffer_of(const ConstElements& elements) {
  return {const_cast<std::byte*>(elements.data), elements.count, elements.dtype, {}};
}

ReplicaBuffer as_bytes(const ReplicaBuffer& buffer) {
  return {buffer.data, buffer.num_bytes(), DType::kUInt8, buffer.device};
}

/// A part of a store: sees `prefix` + key where its user says key.
class PrefixStore final : public KeyValueStore {
 public:
  PrefixStore(std::shared_ptr<KeyValueStore> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}
  void set(std::string_view key, std::string_view value) override { store_->set(full(key), value); }
  std::optional<std::string> get(std::string_view key) override { return store_->get(full(key)); }
  std::string wait(std::string_view key, TimePoint deadline) override {
    return store_->wait(full(key), deadline);
  }

 private:
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }

  std::shared_ptr<KeyValueStore> store_;
  std::string prefix_;
};

/// What an engine and those of its subgroups are made of.
struct Parts {
  CrossDeviceOpsSpec spec;
  std::shared_ptr<Transport> transport;
  std::shared_ptr<KeyValueStore> store;  // this group's part
  std::vector<int> ranks;                // of the transport, by number in the group
  int rank = 0;                          // in the group
  Device device;
  std::unique_ptr<CollectiveEngine> messages;
};

class OpsEngine final : public CollectiveEngine {
 public:
  explicit OpsEngine(Parts parts)
      : parts_(std::move(parts)),
        ops_(build_cross_device_ops(
            parts_.spec,
            Group{size(), parts_.rank, {parts_.device}, parts_.store, parts_.transport})),
        watch_(*parts_.transport, parts_.ranks) {
    if (ops_->spans_processes() || size() == 1) return;
    fail(ErrorCode::kUnimplemented, name(), ": works within one process alone; expected an ",
         "operation that spans processes, such as ", join(message_algorithms()));
  }

  int rank() const override { return parts_.rank; }
  int size() const override { return static_cast<int>(parts_.ranks.size()); }
  std::string_view name() const override { return parts_.spec.name; }
  bool supports(Collective collective, ReduceOp op, DType dtype) const override {
    return is_native(collective, op, dtype) || parts_.messages->supports(collective, op, dtype);
  }
  Determinism determinism() const override { return ops_->determinism(); }

  void run(const CollectiveCall& call, const CollectiveHeader& header, TimePoint deadline) override;
  void abort(const Error& reason) noexcept override {
    close(Error(ErrorCode::kAborted, reason.message()));
  }
  std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                             std::uint32_t number) override;
  void tend(const std::function<std::string()>& own_state) override {
    parts_.messages->tend(own_state);
    if (const auto reason = watch_.look()) ops_->abort(*reason);
  }
  std::vector<std::string> whereabouts(TimePoint deadline) override {
    return parts_.messages->whereabouts(deadline);
  }

 private:
  bool is_native(Collective collective, ReduceOp op, DType dtype) const;
  void run_native(const CollectiveCall& call);
  void close(const Error& reason) noexcept;
  void throw_if_closed();

  Parts parts_;
  std::unique_ptr<CrossDeviceOps> ops_;
  AbortWatch watch_;
  Mutex mutex_;
  std::optional<Error> closed_ TUTTI_GUARDED_BY(mutex_);
};

bool OpsEngine::is_native(Collective collective, ReduceOp op, DType dtype) const {
  if (size() == 1 || collective == Collective::kAllToAll || !ops_->provides(collective)) {
    return false;
  }
  return !combines(collective) || ops_->supports(op, dtype, parts_.device.type);
}

void OpsEngine::run(const CollectiveCall& call, const CollectiveHeader& header,
                    TimePoint deadline) {
  throw_if_closed();
  try {
    // header.count is equal on all ranks, call.count is not.
    if (header.count == 0 || !is_native(call.collective, call.op, call.dtype)) {
      parts_.messages->run(call, header, deadline);
      return;
    }
    CollectiveCall meeting;
    meeting.collective = Collective::kBarrier;
    parts_.messages->run(meeting, header, deadline);
    run_native(call);
  } catch (const Error& error) {
    close(error);
    throw;
  }
}

void OpsEngine::run_native(const CollectiveCall& call) {
  if (call.outputs.size() > 1) {  // an operation pays for each call
    return run_packed(call, [this](const CollectiveCall& flat) { run_native(flat); });
  }
  ReplicaBuffer input, output;
  if (!call.inputs.empty()) input = buffer_of(call.inputs[0]);
  if (!call.outputs.empty()) output = buffer_of(call.outputs[0]);
  std::vector<std::size_t> counts(call.counts.begin(), call.counts.end());
  BufferCall own{call.collective, call.op, call.root, {&input, 1}, {&output, 1}, counts};
  if (!combines(call.collective)) {  // what is copied is bytes: those may begin anywhere
    input = as_bytes(input);
    output = as_bytes(output);
    for (std::size_t& count : counts) count *= size_of(call.dtype);
  }
  if (call.collective == Collective::kReduce && call.root != rank()) own.outputs = {};
  if (call.collective == Collective::kAllReduce) {  // in place
    copy_buffer(input, output);
    own.inputs = {};
  }
  if (call.collective == Collective::kBroadcast) own.inputs = {};
  carry_out_unchecked(*ops_, own);
}

void OpsEngine::close(const Error& reason) noexcept {
  {
    MutexLock lock(mutex_);
    if (!closed_) closed_ = reason;
  }
  parts_.messages->abort(reason);
  ops_->abort(reason);
}

void OpsEngine::throw_if_closed() {
  MutexLock lock(mutex_);
  if (closed_) throw *closed_;
}

std::unique_ptr<CollectiveEngine> OpsEngine::subgroup(const std::vector<int>& ranks,
                                                      std::uint32_t number) {
  Parts parts;
  parts.spec = parts_.spec;
  parts.transport = parts_.transport;
  for (const int member : ranks) {
    parts.ranks.push_back(parts_.ranks[static_cast<std::size_t>(member)]);
  }
  // Groups that share no member may have one number.
  const std::string prefix = concat("g", number, ".", ranks[0], "/");
  if (parts_.store) parts.store = std::make_shared<PrefixStore>(parts_.store, prefix);
  parts.rank = static_cast<int>(std::ranges::find(ranks, parts_.rank) - ranks.begin());
  parts.device = parts_.device;
  parts.messages = parts_.messages->subgroup(ranks, number);
  return std::make_unique<OpsEngine>(std::move(parts));
}

/// A number that no other group has had, from rank 0.
std::uint64_t agree_on_nonce(Transport& transport, TimePoint deadline) {
  std::uint64_t nonce = 0;
  const auto bytes = std::as_writable_bytes(std::span(&nonce, 1));
  if (transport.rank() != 0) {
    transport.recv(0, kNonceTag, {}, bytes)->wait(deadline);
    return nonce;
  }
  while (nonce == 0) {
    if (::getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce)) nonce = 0;
  }
  std::vector<std::unique_ptr<Work>> sends;
  for (int peer = 1; peer < transport.size(); ++peer) {
    sends.push_back(transport.send(peer, kNonceTag, {}, bytes));
  }
  for (const auto& send : sends) send->wait(deadline);
  return nonce;
}

}  // namespace

std::unique_ptr<CollectiveEngine> ops_engine(const CrossDeviceOpsSpec& spec, const Group& group,
                                             TimePoint deadline) {
  if (!group.transport || group.local_devices.size() != 1 ||
      group.world_size != group.transport->size() || group.first_rank != group.transport->rank()) {
    fail(ErrorCode::kInvalidArgument, spec.name, ": the group of a communicator; expected one ",
         "local device and a transport of its size and rank, got ", group.local_devices.size(),
         " devices and rank ", group.first_rank, " of ", group.world_size,
         group.transport ? "" : " without transport");
  }
  Parts parts;
  parts.spec = spec;
  parts.transport = group.transport;
  const std::uint64_t nonce = agree_on_nonce(*group.transport, deadline);
  if (group.store) {
    parts.store = std::make_shared<PrefixStore>(group.store, concat("ops/", nonce, "/"));
  }
  for (int rank = 0; rank < group.world_size; ++rank) parts.ranks.push_back(rank);
  parts.rank = group.first_rank;
  parts.device = group.local_devices[0];
  parts.messages = message_engine(group.transport, "canonical");
  return std::make_unique<OpsEngine>(std::move(parts));
}

}  // namespace tutti::internal
