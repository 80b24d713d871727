// Copying into and out of a ring; a stream of two rings that wakes who sleeps, and notices who is
// gone.
// SPDX-License-Identifier: Apache-2.0
//
// No side sleeps through bytes: one that is about to sleep sets its flag and then looks at the ring
// a last time; one that has moved bytes stores its counter and then looks at the flag. All four are
// sequentially consistent, so one of the two sees the other. The bell is a byte in the local
// socket, which poll() sees beside the sockets of other peers.
//
// A process that ends, however it ends, closes its end of the socket. One that has forked left a
// copy of it in its child; therefore its pidfd is watched, too.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/cluster/net/byte_stream.h"
#include "tutti/cluster/net/segment.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

// Fits the second-level cache beside what the other side reads.
constexpr std::size_t kPiece = std::size_t{32} << 10;

class RingStream final : public ByteStream {
 public:
  RingStream(std::shared_ptr<const Segment> own, std::shared_ptr<const Segment> peer,
             FileDescriptor socket, std::string name)
      : ByteStream(std::move(name)),
        own_(std::move(own)),
        of_peer_(std::move(peer)),
        socket_(std::move(socket)),
        out_(own_->ring_to(of_peer_->layout().rank)),
        in_(of_peer_->ring_to(own_->layout().rank)),
        process_(watch_process(peer_process(socket_).pid)) {}
  ~RingStream() override { close(); }

  std::size_t read(std::span<const iovec> places) override {
    const bool was_gone = is_gone_.load();
    const std::size_t count = in_.read(places);
    if (count == 0 && in_.control().is_closed.load() != 0 && !in_.has_bytes()) {
      fail(ErrorCode::kUnavailable, peer(), " is gone: it closed its transport");
    }
    if (count == 0 && was_gone) {
      fail(ErrorCode::kUnavailable, peer(), " is gone: its process has ended");
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
    descriptors.push_back({socket_.get(), POLLIN, 0});
    // poll() skips a descriptor of -1.
    descriptors.push_back({process_.get(), POLLIN, 0});
  }

  void on_ready(std::span<const pollfd> descriptors) override {
    std::array<std::byte, 64> bells;
    while (descriptors[0].revents != 0) {
      const ssize_t count = ::recv(socket_.get(), bells.data(), bells.size(), MSG_DONTWAIT);
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
    ::shutdown(socket_.get(), SHUT_RDWR);
  }

 private:
  void ring_bell(std::atomic<std::uint32_t>& sleeps) {
    if (sleeps.exchange(0) == 0) return;
    const std::byte bell{1};
    // A full socket wakes the peer as well.
    (void)!::send(socket_.get(), &bell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  const std::shared_ptr<const Segment> own_, of_peer_;
  const FileDescriptor socket_;
  Ring out_;  // guarded as write() is
  Ring in_;   // as read()
  const FileDescriptor process_;
  std::atomic<bool> is_gone_{false};
};

}  // namespace

void Ring::copy_in(std::uint64_t at, const std::byte* from, std::size_t count) {
  const std::size_t place = at & (num_bytes_ - 1);
  const std::size_t first = std::min(count, num_bytes_ - place);
  std::memcpy(bytes_ + place, from, first);
  std::memcpy(bytes_, from + first, count - first);
}

void Ring::copy_out(std::uint64_t at, std::byte* to, std::size_t count) const {
  const std::size_t place = at & (num_bytes_ - 1);
  const std::size_t first = std::min(count, num_bytes_ - place);
  std::memcpy(to, bytes_ + place, first);
  std::memcpy(to + first, bytes_, count - first);
}

std::size_t Ring::write(std::span<const iovec> parts) {
  std::uint64_t at = control_->written.load(std::memory_order_relaxed);
  std::size_t total = 0;
  for (const iovec& part : parts) {
    const auto* const from = static_cast<const std::byte*>(part.iov_base);
    for (std::size_t done = 0; done < part.iov_len;) {
      const std::uint64_t used = at - control_->taken.load();
      if (used > num_bytes_) {
        fail(ErrorCode::kDataLoss, "shm: a ring of ", num_bytes_, " bytes says that ", used,
             " are in it");
      }
      const std::size_t count = std::min({kPiece, part.iov_len - done, num_bytes_ - used});
      if (count == 0) return total;
      copy_in(at, from + done, count);
      at += count;
      done += count;
      total += count;
      // Sequentially consistent: see RingStream, where sleepers are woken.
      control_->written.store(at);
    }
  }
  return total;
}

std::size_t Ring::read(std::span<const iovec> places) {
  std::uint64_t at = control_->taken.load(std::memory_order_relaxed);
  std::size_t total = 0;
  for (const iovec& place : places) {
    auto* const to = static_cast<std::byte*>(place.iov_base);
    for (std::size_t done = 0; done < place.iov_len;) {
      const std::uint64_t there = control_->written.load() - at;
      if (there > num_bytes_) {
        fail(ErrorCode::kDataLoss, "shm: a ring of ", num_bytes_, " bytes says that ", there,
             " are in it");
      }
      const std::size_t count = std::min<std::size_t>({kPiece, place.iov_len - done, there});
      if (count == 0) return total;
      copy_out(at, to + done, count);
      at += count;
      done += count;
      total += count;
      control_->taken.store(at);
    }
  }
  return total;
}

std::unique_ptr<ByteStream> ring_stream(std::shared_ptr<const Segment> own,
                                        std::shared_ptr<const Segment> peer, FileDescriptor socket,
                                        std::string name) {
  return std::make_unique<RingStream>(std::move(own), std::move(peer), std::move(socket),
                                      std::move(name));
}

}  // namespace tutti::internal
