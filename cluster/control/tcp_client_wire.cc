// A member's connection on plain TCP.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <array>
#include <atomic>

#include "tutti/cluster/control/control_frame.h"
#include "tutti/cluster/control/wires.h"
#include "tutti/cluster/handshake/handshake.h"
#include "tutti/cluster/tcp/stream.h"
#include "tutti/core/sync.h"

namespace tutti::internal {
namespace {

class TcpClientWire final : public ClientWire {
 public:
  TcpClientWire(FileDescriptor socket, const Handshake& handshake, std::span<const std::byte> rest)
      : socket_(std::move(socket)),
        wake_(make_wake_event()),
        reader_(FrameSeals(handshake.session_key(Handshake::Side::kServer))),
        seals_(handshake.session_key(Handshake::Side::kClient)) {
    reader_.take(rest);
  }

  void send(const Message& message) override {
    {
      MutexLock lock(mutex_);
      append_frame(unsent_, message, seals_);
    }
    flush();
    wake();
  }

  std::vector<Message> receive(TimePoint deadline) override {
    std::vector<Message> messages = read_all();
    if (!messages.empty() || !is_open_) return messages;
    const bool writes = flush();
    std::array<pollfd, 2> descriptors{
        {{socket_.get(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0},
         {wake_.get(), POLLIN, 0}}};
    (void)poll_until(descriptors, deadline);
    std::uint64_t count = 0;
    if (descriptors[1].revents != 0) (void)!::read(wake_.get(), &count, sizeof(count));
    flush();
    return read_all();
  }

  void wake() override {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));
  }
  bool is_open() const override { return is_open_; }

 private:
  /// Whether something is left to be sent.
  bool flush() {
    MutexLock lock(mutex_);
    std::size_t count = 0;
    // What the server said before it left is still to be read; its end will be, too.
    if (write_now(socket_, unsent_, count) == ByteFlow::kClosed) can_write_ = false;
    unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(count));
    if (!can_write_) unsent_.clear();
    return !unsent_.empty();
  }

  std::vector<Message> read_all() {
    std::vector<Message> messages;
    std::size_t count = buffer_.size();
    while (is_open_ && count == buffer_.size()) {
      if (read_now(socket_, buffer_, count) == ByteFlow::kClosed) is_open_ = false;
      reader_.take(std::span<const std::byte>(buffer_).first(count));
      try {
        while (auto message = reader_.next()) messages.push_back(*std::move(message));
      } catch (const Error&) {  // damaged on the way: a new connection makes it good
        is_open_ = false;
      }
    }
    return messages;
  }

  const FileDescriptor socket_;
  const FileDescriptor wake_;
  FrameReader reader_;
  std::array<std::byte, 16384> buffer_{};
  std::atomic<bool> is_open_{true};
  Mutex mutex_;
  bool can_write_ TUTTI_GUARDED_BY(mutex_) = true;
  std::vector<std::byte> unsent_ TUTTI_GUARDED_BY(mutex_);
  FrameSeals seals_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace

Attempt connect_tcp(const ConnectParameters& parameters) {
  if (parameters.tls.is_set()) {
    fail(ErrorCode::kUnimplemented,
         "control: the wire tcp has no TLS; use a grpc:// target, or a job secret");
  }
  Attempt attempt;
  OpenedConnection opened = connect_until(parameters.endpoint, parameters.deadline);
  attempt.reason = opened.reason;
  attempt.is_nobody_there = opened.is_nobody_there;
  attempt.is_hopeless = opened.is_hopeless;
  if (!opened.socket.is_open()) return attempt;
  FileDescriptor& socket = opened.socket;
  Handshake handshake(Handshake::Side::kClient, parameters.hello, parameters.secret);
  const auto rest = run_handshake(socket, handshake, parameters.deadline);
  if (handshake.state() == Handshake::State::kRunning) {
    attempt.reason = "it accepts connections, but does not answer";
    return attempt;
  }
  if (handshake.state() != Handshake::State::kDone) {
    attempt.reason = handshake.reason();
    attempt.is_final = true;
    return attempt;
  }
  attempt.wire = std::make_unique<TcpClientWire>(std::move(socket), handshake, rest);
  return attempt;
}

}  // namespace tutti::internal
