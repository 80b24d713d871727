// Rings that wake who sleeps, and notice who is gone.
// SPDX-License-Identifier: Apache-2.0
//
// Nobody sleeps through bytes: who is about to sleep sets its flag and then looks at the ring a
// last time; who has moved bytes stores its counter and then looks at the flag. All four are
// sequentially consistent, so one of the two sees the other. The bell is a byte in the local
// socket, which poll() sees beside the sockets of other peers.
//
// A process that ends, however it ends, closes its end of the socket. One that has forked left a
// copy of it in its child; therefore its pidfd is watched, too.
#include "tutti/cluster/net/ring_stream.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

class RingStream final : public ByteStream {
 public:
  explicit RingStream(RingStreamParts parts)
      : parts_(std::move(parts)),
        out_(parts_.own->ring_to(parts_.peer->layout().rank)),
        in_(parts_.peer->ring_to(parts_.own->layout().rank)),
        process_(watch_process(peer_process(parts_.socket).pid)) {}
  ~RingStream() override { close(); }

  std::size_t read(std::span<const iovec> places) override {
    const bool was_gone = is_gone_.load();
    const std::size_t count = in_.read(places);
    if (count == 0 && in_.control().is_closed.load() != 0 && !in_.has_bytes()) {
      fail(ErrorCode::kUnavailable, "shm: ", parts_.name, " is gone: it closed its transport");
    }
    if (count == 0 && was_gone) {
      fail(ErrorCode::kUnavailable, "shm: ", parts_.name, " is gone: its process has ended");
    }
    if (count > 0 && in_.control().writer_sleeps.load() != 0)
      ring_bell(in_.control().writer_sleeps);
    return count;
  }

  std::optional<std::size_t> write(std::span<const iovec> parts) override {
    if (is_gone_ || in_.control().is_closed.load() != 0) return std::nullopt;
    const std::size_t count = out_.write(parts);
    if (count > 0 && out_.control().reader_sleeps.load() != 0) {
      ring_bell(out_.control().reader_sleeps);
    }
    return count;
  }

  bool is_memory() const override { return true; }

  void watch(std::vector<pollfd>& descriptors, bool /*wants_room*/) const override {
    descriptors.push_back({parts_.socket.get(), POLLIN, 0});
    // poll() skips a descriptor of -1.
    descriptors.push_back({process_.get(), POLLIN, 0});
  }

  void on_ready(std::span<const pollfd> descriptors) override {
    std::array<std::byte, 64> bells;
    while (descriptors[0].revents != 0) {
      const ssize_t count = ::recv(parts_.socket.get(), bells.data(), bells.size(), MSG_DONTWAIT);
      if (count > 0 || (count < 0 && errno == EINTR)) continue;
      if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) is_gone_ = true;
      break;
    }
    if (descriptors[1].revents != 0) is_gone_ = true;
  }

  bool begin_sleep(bool wants_room) override {
    in_.control().reader_sleeps.store(1);
    if (wants_room) out_.control().writer_sleeps.store(1);
    return !in_.has_bytes() && !(wants_room && out_.has_room());
  }
  void end_sleep() override {
    in_.control().reader_sleeps.store(0);
    out_.control().writer_sleeps.store(0);
  }

  void close() noexcept override {
    out_.control().is_closed.store(1);
    ::shutdown(parts_.socket.get(), SHUT_RDWR);
  }

 private:
  void ring_bell(std::atomic<std::uint32_t>& sleeps) {
    if (sleeps.exchange(0) == 0) return;
    const std::byte bell{1};
    // A full socket wakes the peer as well.
    (void)!::send(parts_.socket.get(), &bell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  const RingStreamParts parts_;
  Ring out_;  // guarded as write() is
  Ring in_;   // as read()
  const FileDescriptor process_;
  std::atomic<bool> is_gone_{false};
};

}  // namespace

std::unique_ptr<ByteStream> ring_stream(RingStreamParts parts) {
  return std::make_unique<RingStream>(std::move(parts));
}

}  // namespace tutti::internal
