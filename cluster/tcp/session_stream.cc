// Chunks on a connection, and finding a new connection.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/session_stream.h"

#include <chrono>
#include <optional>
#include <utility>

#include "tutti/cluster/tcp/session_receiver.h"
#include "tutti/cluster/tcp/session_sender.h"
#include "tutti/cluster/tcp/session_way.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr std::uint64_t kTimesSaid = 10;  // each; later every hundredth time

std::int64_t milliseconds_since(TimePoint time) {
  return (Clock::system().now() - time) / std::chrono::milliseconds(1);
}

class SessionStream final : public ByteStream {
 public:
  explicit SessionStream(SessionParts parts)
      : name_(parts.name), hub_(parts.hub), way_(std::move(parts)) {}

  std::size_t read(std::span<const iovec> places) override {
    MutexLock lock(mutex_);
    step();
    std::size_t total = 0;
    try {
      total = receiver_.read(way_.socket(), places);
    } catch (const Error& error) {
      // The connection broke, or brought what was not sent.
      if (error.code() == ErrorCode::kDataLoss) counters_.damaged_chunks += 1;
      lose(error.message());
    }
    sender_.forget(receiver_.acked());
    if (sender_.owes_ack(receiver_.received())) push();
    if (total == 0 && receiver_.has_said_bye()) {
      fail(ErrorCode::kUnavailable, "tcp: ", name_, " is gone: it closed the connection");
    }
    if (total == 0 && way_.is_gone()) fail(ErrorCode::kUnavailable, "tcp: ", name_, way_.reason());
    return total;
  }

  std::optional<std::size_t> write(std::span<const iovec> parts) override {
    MutexLock lock(mutex_);
    step();
    if (way_.is_gone() || receiver_.has_said_bye()) return std::nullopt;
    const std::size_t count = sender_.take(parts);
    push();
    return count;
  }

  bool flush() override {
    MutexLock lock(mutex_);
    step();
    push();
    return way_.is_up() && !sender_.has_pending();
  }

  void watch(std::vector<pollfd>& descriptors, bool wants_room) const override {
    MutexLock lock(mutex_);
    // Room came with an acknowledgement that was read since: nothing else would tell.
    way_.watch(descriptors, sender_.has_pending() || (wants_room && sender_.has_room()));
    hub_->watch(descriptors);
  }
  bool on_ready(std::span<const pollfd>) override {
    hub_->look();
    return true;
  }
  TimePoint wake_at() const override {
    MutexLock lock(mutex_);
    return way_.wake_at();
  }

  bool has_unsent() const override {
    MutexLock lock(mutex_);
    return way_.is_up() && (sender_.has_pending() || way_.has_unsent());
  }
  void close() noexcept override {
    MutexLock lock(mutex_);
    if (!way_.is_up()) return;
    sender_.say_bye();
    push();
    way_.close();
  }
  StreamCounters counters() const override {
    MutexLock lock(mutex_);
    return counters_;
  }

 private:
  void push() TUTTI_REQUIRES(mutex_) {
    if (!way_.is_up() || write_failed_) return;
    try {
      sender_.push(way_.socket(), receiver_.received());
    } catch (const Error&) {
      // The peer's last words may still be there to be read; after them reading fails, too.
      write_failed_ = true;
    }
  }

  void step() TUTTI_REQUIRES(mutex_) {
    if (way_.is_up() && !hub_->has_arrivals()) return;
    const std::optional<std::uint64_t> received = way_.step(receiver_.received());
    if (!received) return;
    write_failed_ = false;
    receiver_.restart();
    counters_.reconnects += 1;
    say_that_it_is_back();
    try {
      sender_.restart(*received);
    } catch (const Error& error) {
      return lose(error.message());
    }
    push();
  }

  void lose(const std::string& why) TUTTI_REQUIRES(mutex_) {
    receiver_.restart();  // what else the connection brought is sent again
    if (way_.is_up()) lost_ = {Clock::system().now(), why};
    way_.lose(why);
  }

  /// A network that breaks or changes what it carries is news for people, though nothing is lost.
  void say_that_it_is_back() TUTTI_REQUIRES(mutex_) {
    const auto lost = std::exchange(lost_, std::nullopt);
    const std::uint64_t times = counters_.reconnects;
    if (times > kTimesSaid && times % 100 != 0) return;
    const std::string how = lost
                                ? concat("after ", milliseconds_since(lost->at), " ms: ", lost->why)
                                : std::string("at its wish");
    log_info(concat("tcp: ", name_, " is connected again ", how,
                    times >= kTimesSaid ? concat(" (", times, " times so far)") : ""));
  }

  const std::string name_;
  const std::shared_ptr<SessionHub> hub_;
  mutable Mutex mutex_;
  SessionWay way_ TUTTI_GUARDED_BY(mutex_);
  SessionSender sender_ TUTTI_GUARDED_BY(mutex_);
  SessionReceiver receiver_ TUTTI_GUARDED_BY(mutex_);
  StreamCounters counters_ TUTTI_GUARDED_BY(mutex_);
  bool write_failed_ TUTTI_GUARDED_BY(mutex_) = false;
  struct Loss {
    TimePoint at;
    std::string why;
  };
  std::optional<Loss> lost_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<ByteStream> session_stream(SessionParts parts) {
  return std::make_unique<SessionStream>(std::move(parts));
}

}  // namespace tutti::internal
