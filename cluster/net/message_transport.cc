// Works over a mesh of byte streams.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/message_transport.h"

#include <utility>

namespace tutti::internal {
namespace {

template <class Side>
class MessageWork final : public Work {
 public:
  static constexpr bool kIsSend = std::is_same_v<Side, Outgoing>;

  MessageWork(std::shared_ptr<Mesh> mesh, int peer, std::shared_ptr<Side> side)
      : mesh_(std::move(mesh)), peer_(peer), side_(std::move(side)) {}

  ~MessageWork() override {
    if (side_->has_ended()) return;
    if constexpr (kIsSend) {
      mesh_->peer(peer_).outbox.cancel(side_);
    } else {
      mesh_->peer(peer_).inbox.cancel(side_);
    }
  }

  bool test() override {
    if (!side_->has_ended()) mesh_->test(*side_, peer_);
    return has_ended();
  }

  void wait(TimePoint deadline) override {
    mesh_->wait(*side_, peer_, deadline);
    if (has_ended()) return;
    const Peer& peer = mesh_->peer(peer_);
    fail(ErrorCode::kDeadlineExceeded, peer.kind(), ": ", peer.name(),
         kIsSend ? " has not taken" : " has not sent", " the message with tag ", side_->tag,
         " (body of ", side_->body_bytes, " bytes) before the deadline of rank ", mesh_->rank());
  }

 private:
  bool has_ended() const {
    if (!side_->has_ended()) return false;
    if (side_->error()) throw *side_->error();
    return true;
  }

  std::shared_ptr<Mesh> mesh_;
  const int peer_;
  std::shared_ptr<Side> side_;
};

class MessageTransport final : public Transport {
 public:
  MessageTransport(std::string name, std::shared_ptr<Mesh> mesh, std::shared_ptr<HostMemory> memory)
      : name_(std::move(name)), mesh_(std::move(mesh)), memory_(std::move(memory)) {}
  ~MessageTransport() override { mesh_->close(); }

  int rank() const override { return mesh_->rank(); }
  int size() const override { return mesh_->size(); }
  std::string_view name() const override { return name_; }

  std::unique_ptr<Work> send(int peer, std::uint64_t tag, std::span<const std::byte> head,
                             std::span<const std::byte> body) override {
    check(peer, head.size(), body.size());
    const FrameHeader header{FrameHeader::Kind::kMessage, static_cast<std::uint16_t>(head.size()),
                             tag, body.size()};
    auto message = std::make_shared<Outgoing>(header, head, body);
    auto work = std::make_unique<MessageWork<Outgoing>>(mesh_, peer, message);
    mesh_->send(peer, message);
    return work;
  }

  std::unique_ptr<Work> recv(int peer, std::uint64_t tag, std::span<std::byte> head,
                             std::span<std::byte> body) override {
    check(peer, head.size(), body.size());
    auto receiver = std::make_shared<Incoming>();
    receiver->tag = tag;
    receiver->body_bytes = body.size();
    receiver->head = head;
    receiver->body = body;
    auto work = std::make_unique<MessageWork<Incoming>>(mesh_, peer, receiver);
    mesh_->peer(peer).inbox.post(receiver);
    return work;
  }

  void abort(const Error& reason) noexcept override { mesh_->abort(reason); }
  std::optional<int> lost_peer() const override { return mesh_->lost_peer(); }

  TransportStats stats() const override {
    TransportStats sum;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      const TransportStats of_peer = mesh_->peer(peer).outbox.stats();
      sum.messages_sent += of_peer.messages_sent;
      sum.bytes_sent += of_peer.bytes_sent;
    }
    return sum;
  }

  std::shared_ptr<HostMemory> host_memory() override { return memory_; }

 private:
  void check(int peer, std::size_t head_bytes, std::size_t body_bytes) const {
    if (peer < 0 || peer >= size() || peer == rank()) {
      fail(ErrorCode::kInvalidArgument, name_, ": rank ", rank(), " names the peer ", peer,
           "; expected another rank from 0 to ", size() - 1);
    }
    if (head_bytes > kLongestHead || body_bytes > kLongestBody) {
      fail(ErrorCode::kInvalidArgument, name_, ": rank ", rank(),
           ": head and body of a message; expected at most ", kLongestHead, " and ", kLongestBody,
           " bytes, got ", head_bytes, " and ", body_bytes);
    }
  }

  const std::string name_;
  const std::shared_ptr<Mesh> mesh_;
  const std::shared_ptr<HostMemory> memory_;
};

}  // namespace

std::shared_ptr<Transport> message_transport(std::string name, std::shared_ptr<Mesh> mesh,
                                             std::shared_ptr<HostMemory> memory) {
  return std::make_shared<MessageTransport>(std::move(name), std::move(mesh), std::move(memory));
}

}  // namespace tutti::internal
