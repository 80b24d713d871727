// Engine for one rank's communicator that uses a CrossDeviceOps spanning several processes. Headers
// are sent in messages; the operation moves the data.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/native_call_engine.h"

#include <sys/random.h>

#include <utility>
#include <vector>

#include "cross_device_ops/buffer_call.h"
#include "cross_device_ops/collective_engine.h"

namespace tutti::internal {
namespace {

ReplicaBuffer as_bytes(const ReplicaBuffer& buffer) {
  return {buffer.data, buffer.num_bytes(), DType::kUInt8, buffer.device};
}

/// Transport, with its own tags, for messages that an operation sends between the ranks of its
/// group.
class OperationTransport final : public Transport {
 public:
  explicit OperationTransport(RankLink link) : link_(std::move(link)) {}
  int rank() const override { return link_.rank; }
  int size() const override { return link_.size(); }
  std::string_view name() const override { return link_.transport->name(); }
  bool spans_processes() const override { return link_.transport->spans_processes(); }
  std::unique_ptr<Work> send(int peer, std::uint64_t tag, std::span<const std::byte> head,
                             std::span<const std::byte> body) override {
    return link_.send(peer, purpose_of(peer, tag), head, body);
  }
  std::unique_ptr<Work> recv(int peer, std::uint64_t tag, std::span<std::byte> head,
                             std::span<std::byte> body) override {
    return link_.recv(peer, purpose_of(peer, tag), head, body);
  }
  void abort(const Error& reason) noexcept override { link_.transport->abort(reason); }
  std::optional<int> lost_peer() const override { return link_.transport->lost_peer(); }
  TransportStats stats() const override { return link_.transport->stats(); }

 private:
  Purpose purpose_of(int peer, std::uint64_t tag) const {
    if (peer >= 0 && peer < size() && peer != rank() && tag <= kLargestOperationTag) {
      return static_cast<Purpose>(static_cast<std::uint64_t>(Purpose::kOfOperation) + tag);
    }
    fail(ErrorCode::kInvalidArgument,
         "Group::transport: expected a peer other than this rank, from 0 to ", size() - 1,
         ", and a tag from 0 to ", kLargestOperationTag, ", got rank ", peer, " and tag ", tag);
  }

  const RankLink link_;
};

class OpsEngine final : public NativeCallEngine {
 public:
  /// `store`: this group's part of the key-value store.
  OpsEngine(CrossDeviceOpsSpec spec, RankLink link, StorePart store, Device device,
            std::unique_ptr<CollectiveEngine> messages)
      : NativeCallEngine(std::move(link), std::move(messages)),
        spec_(std::move(spec)),
        store_(std::move(store)),
        device_(device),
        ops_(build_cross_device_ops(
            spec_,
            {size(), rank(), {device}, store_, std::make_shared<OperationTransport>(link_)})) {
    if (ops_->spans_processes() || size() == 1) return;
    fail(ErrorCode::kUnimplemented, name(), ": works only within one process; expected an ",
         "operation that spans processes, such as ", join(message_algorithms()));
  }

  std::string_view name() const override { return spec_.name; }
  bool supports(Collective collective, ReduceOp op, DType dtype) const override {
    return is_native(collective, op, dtype) || messages_->supports(collective, op, dtype);
  }
  Determinism determinism() const override { return ops_->determinism(); }
  double max_relative_error() const override { return ops_->max_relative_error(); }
  std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                             std::uint32_t number) override {
    // Two groups without a common member may have the same group number.
    return std::make_unique<OpsEngine>(spec_, link_.subgroup(ranks, number),
                                       store_.part(concat("g", number, ".", ranks[0], "/")),
                                       device_, messages_->subgroup(ranks, number));
  }

 private:
  bool is_native(const CollectiveCall& call, const CollectiveHeader& header) override {
    return header.count > 0 && is_native(call.collective, call.op, call.dtype);
  }
  bool is_native(Collective collective, ReduceOp op, DType dtype) const {
    if (size() == 1 || collective == Collective::kAllToAll || !ops_->provides(collective)) {
      return false;
    }
    return !combines(collective) || ops_->supports(op, dtype, device_.type);
  }
  void carry_out(const CollectiveCall& call, const CollectiveHeader& header, TimePoint) override {
    ReplicaBuffer input, output;
    if (!call.inputs.empty()) input = buffer_of(call.inputs[0]);
    if (!call.outputs.empty()) output = buffer_of(call.outputs[0]);
    input.id = output.id = call.id != 0 ? call.id : header.name_hash;
    input.name = output.name = header.name.data();
    std::vector<std::size_t> counts(call.counts.begin(), call.counts.end());
    BufferCall own{call.collective, call.op, call.root, {&input, 1}, {&output, 1}, counts};
    if (!combines(call.collective)) {  // bytes that are only copied need no alignment
      input = as_bytes(input);
      output = as_bytes(output);
      for (std::size_t& count : counts) count *= size_of(call.dtype);
    }
    if (call.collective == Collective::kReduce && call.root != rank()) own.outputs = {};
    if (call.collective == Collective::kAllReduce) {  // all_reduce works in place
      copy_buffer(input, output);
      own.inputs = {};
    }
    if (call.collective == Collective::kBroadcast) own.inputs = {};
    carry_out_unchecked(*ops_, own);
  }
  void stop(const Error& reason) noexcept override { ops_->abort(reason); }

  const CrossDeviceOpsSpec spec_;
  const StorePart store_;
  const Device device_;
  const std::unique_ptr<CrossDeviceOps> ops_;
};

/// Returns a random number, drawn by rank 0, that no other group uses.
std::uint64_t agree_on_nonce(const RankLink& link, std::string_view who, TimePoint deadline) {
  std::uint64_t own = 0;
  while (own == 0) {
    if (::getrandom(&own, sizeof(own), 0) != sizeof(own)) own = 0;
  }
  return link.exchange(Purpose::kNonce, own, deadline, who).front();
}

}  // namespace

std::unique_ptr<CollectiveEngine> ops_engine(const CrossDeviceOpsSpec& spec, const Group& group,
                                             TimePoint deadline) {
  require_one_replica(spec.name, group);
  RankLink link = link_all(group.transport);
  const std::uint64_t nonce = agree_on_nonce(link, spec.name, deadline);
  return std::make_unique<OpsEngine>(
      spec, std::move(link), group.store.part(concat("ops/", nonce, "/")), group.local_devices[0],
      message_engine(group.transport, "canonical"));
}

}  // namespace tutti::internal
