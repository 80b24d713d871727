// Chunks on connections, and finding new ones.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/session_stream.h"

#include <chrono>
#include <optional>
#include <utility>

#include "tutti/cluster/tcp/session_receiver.h"
#include "tutti/cluster/tcp/session_sender.h"
#include "tutti/cluster/tcp/session_ways.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr std::uint64_t kTimesSaid = 10;  // each; later every hundredth time
/// Four signs of life that did not come.
constexpr Duration kSilence = std::chrono::seconds(2);
/// coarse_now() lags behind by less.
constexpr Duration kCoarseness = std::chrono::milliseconds(10);
/// A rank that has not looked for so long computes, or waits for others.
constexpr Duration kAway = std::chrono::seconds(1);
/// Between two looks at a connection that is being opened.
constexpr Duration kOpening = std::chrono::milliseconds(2);
/// Who leaves waits so long for a peer to answer before it knocks, and four times as long each time
/// before it does again.
constexpr Duration kBeforeKnocking = std::chrono::milliseconds(1);
constexpr Duration kLongestPause = std::chrono::milliseconds(500);
/// A peer that lives opens a new connection sooner.
constexpr Duration kReturn = std::chrono::seconds(1);
/// So long a peer that has left may come again to ask whether its last bytes have arrived.
constexpr Duration kFarewell = std::chrono::seconds(2);
/// A path that swallows large packets alone breaks each connection that comes after kSilence.
constexpr int kLossesWithoutProgress = 3;
/// A peer that cannot be reached at all is found by the attempts themselves before.
constexpr Duration kReopening = std::chrono::seconds(2);
/// So often all connections are read after one but the first has brought something.
constexpr int kEagerReads = 32;

std::int64_t milliseconds_since(TimePoint time) {
  return (Clock::system().now() - time) / std::chrono::milliseconds(1);
}

class SessionStream final : public ByteStream, private TendedSession {
 public:
  explicit SessionStream(SessionParts parts)
      : name_(parts.name),
        patience_(parts.patience),
        hub_(parts.hub),
        ways_(std::move(parts)),
        sender_(ways_.size()),
        receiver_(ways_.size()),
        places_(ways_.size()) {
    for (Place& place : places_) place.heard_at = coarse_now();
    hub_->add(*this);
  }
  ~SessionStream() override { hub_->remove(*this); }

  std::size_t read(std::span<const iovec> places) override {
    MutexLock lock(mutex_);
    return read_locked(places);
  }

  std::size_t read_in_place(std::span<const iovec> places) override {
    MutexLock lock(mutex_);
    receiver_.aim({static_cast<std::byte*>(places[0].iov_base), places[0].iov_len});
    const std::size_t total = read_locked(places);
    receiver_.aim({});
    return total;
  }

  void leave() override {
    MutexLock lock(mutex_);
    receiver_.leave();
  }

  std::optional<std::size_t> write(std::span<const iovec> parts) override {
    return take(parts, &SessionSender::take);
  }
  std::optional<std::size_t> lend(std::span<const iovec> parts) override {
    return take(parts, &SessionSender::lend);
  }
  bool all_returned(std::uint64_t count) const override {
    MutexLock lock(mutex_);
    return sender_.all_returned(count);
  }
  void take_back(std::uint64_t count) override {
    MutexLock lock(mutex_);
    sender_.take_back(count);
  }

  void move_lent(std::uint64_t count, std::span<const std::byte> to,
                 const std::function<void()>& move) override {
    MutexLock lock(mutex_);
    move();
    sender_.move_lent(count, to);
  }

  bool flush() override {
    MutexLock lock(mutex_);
    step_if_down();
    push();
    return (ways_.any_up() && !sender_.has_pending()) || !sender_.has_unacknowledged();
  }

  void watch(std::vector<pollfd>& descriptors, bool wants_room) const override {
    MutexLock lock(mutex_);
    // Room came with an acknowledgement that was read since: nothing else would tell.
    const bool has_room = wants_room && sender_.has_room();
    const std::size_t first = ways_.first_up();
    for (std::size_t i = 0; i < ways_.size(); ++i) {
      ways_.watch(i, descriptors, sender_.has_pending(i) || (has_room && i == first));
    }
    hub_->watch(descriptors);
  }

  bool on_ready(std::span<const pollfd> descriptors) override {
    hub_->hear(descriptors);
    hub_->look();
    MutexLock lock(mutex_);
    // What is sent again was given to the session before: no caller has anything to write.
    const auto has_room = [](const pollfd& descriptor) { return descriptor.revents & POLLOUT; };
    if (std::ranges::any_of(descriptors, has_room)) push();
    for (const pollfd& descriptor : descriptors) {
      for (std::size_t i = 0; descriptor.revents != 0 && i < ways_.size(); ++i) {
        if (ways_.socket(i).get() == descriptor.fd) places_[i].is_ready = true;
      }
    }
    return true;
  }

  TimePoint wake_at() const override {
    MutexLock lock(mutex_);
    TimePoint first = std::min(ways_.wake_at(), knock_at_);
    for (std::size_t i = 0; i < ways_.size(); ++i) {
      if (ways_.is_up(i)) first = std::min(first, places_[i].heard_at + kSilence + kCoarseness);
    }
    return first;
  }

  bool has_unsent() const override {
    MutexLock lock(mutex_);
    // Who has left takes no more; the system may still have the answer for it.
    const bool has_pending = sender_.has_pending() && !receiver_.has_bye();
    return ways_.any_up() && (has_pending || ways_.has_unsent());
  }
  void say_bye() noexcept override {
    MutexLock lock(mutex_);
    sender_.say_bye();
    push();
    knock_soon();
  }
  bool is_missed() const override {
    MutexLock lock(mutex_);
    // Who has said good-bye itself lacks nothing.
    if (ways_.is_gone() || receiver_.has_bye() || sender_.is_bye_heard()) return false;
    return ways_.any_up() || down_for_ < kReturn;
  }
  void close() noexcept override {
    MutexLock lock(mutex_);
    is_closed_ = true;
    if (!ways_.any_up()) return;
    sender_.say_bye();
    push();
    ways_.close();
  }
  StreamCounters counters() const override {
    MutexLock lock(mutex_);
    return counters_;
  }

 private:
  struct Loss {
    TimePoint at;
    std::string why;
  };
  /// Losses of connections since which the peer has acknowledged nothing.
  struct Stall {
    TimePoint since, lost_at;  // the first one and the last one
    std::uint64_t acknowledged = 0;
    int losses = 0;
  };
  /// What is known of one connection.
  struct Place {
    TimePoint heard_at;
    bool is_ready = false;  // poll() says
    std::optional<Loss> lost;
  };

  using Take = std::size_t (SessionSender::*)(std::span<const iovec>, std::size_t,
                                              SessionSender::Amount);

  std::optional<std::size_t> take(std::span<const iovec> parts, Take how) {
    MutexLock lock(mutex_);
    step_if_down();
    if (ways_.is_gone() || receiver_.has_said_bye()) return std::nullopt;
    // Several connections share the chunks of what there is.
    using Amount = SessionSender::Amount;
    const Amount amount = ways_.size() == 1 ? Amount::kChunk : Amount::kAll;
    std::size_t total = 0;
    for (std::size_t count = 1; count > 0;) {
      count = (sender_.*how)(parts, total, amount);
      total += count;
      push();
    }
    return total;
  }

  void beat() override {
    MutexLock lock(mutex_);
    if (!is_closed_) sender_.beat(ways_.sockets(), receiver_.received());
  }

  TimePoint tend(bool has_visitors) override {
    MutexLock lock(mutex_);
    if (is_closed_) return TimePoint::max();
    const TimePoint now = Clock::system().now();
    const bool is_due = now >= tend_at_ || looked_at_ <= coarse_now() - kAway;
    if (!has_visitors && !is_due) return tend_at_;
    if (look_after(has_visitors)) hub_->call();
    tend_at_ = TimePoint::max();
    if (ways_.is_opening()) {
      tend_at_ = deadline_after(now, kOpening);
    } else if (!ways_.is_gone() && !ways_.any_up() && !is_over()) {
      tend_at_ = std::max(ways_.wake_at(), deadline_after(now, kOpening));
    }
    return tend_at_;
  }

  std::size_t read_locked(std::span<const iovec> places) TUTTI_REQUIRES(mutex_) {
    looked_at_ = coarse_now();
    step();
    std::size_t total = receiver_.give(places);
    while (total == 0) {
      // Chunks that are early are moved only when there is nothing better to do.
      if (!look_at_all() && !receiver_.set_aside()) break;
      total = receiver_.give(places);
    }
    for (std::size_t i = 0; i < ways_.size(); ++i) look_for_failure(i);
    take_note();
    const bool is_leaving = sender_.has_left() && sender_.has_pending();
    if (is_leaving || sender_.owes_ack(receiver_.received())) push();
    if (knock_at_ != TimePoint::max()) await_answer();
    if (total == 0 && receiver_.has_said_bye()) {
      fail(ErrorCode::kUnavailable, "tcp: ", name_, " is gone: it closed the connection");
    }
    if (total == 0 && ways_.is_gone()) {
      fail(ErrorCode::kUnavailable, "tcp: ", name_, ways_.reason());
    }
    return total;
  }

  /// What the peer says of the end and of what has arrived.
  void take_note() TUTTI_REQUIRES(mutex_) {
    sender_.forget(receiver_.acked());
    if (!receiver_.is_ending()) return;
    sender_.hurry();
    if (receiver_.has_bye() && !bye_came_at_) bye_came_at_ = Clock::system().now();
  }

  /// Whether the peer has left, and has had the time to ask whether its last bytes have arrived.
  bool is_over() const TUTTI_REQUIRES(mutex_) {
    return bye_came_at_ && Clock::system().now() >= *bye_came_at_ + kFarewell;
  }

  /// Keeps what comes for the rank. Whether anything has changed.
  bool look_after(bool has_visitors) TUTTI_REQUIRES(mutex_) {
    if (ways_.is_gone() || is_over()) return false;
    for (std::size_t i = 0; has_visitors && receiver_.has_bye() && i < ways_.size(); ++i) {
      // Perhaps this side's last answer went with the connection.
      if (ways_.has_ended(i)) lose(i, "it closed the connection");
    }
    bool came = !ways_.all_up();
    step();
    bool has_room = receiver_.keep();
    for (std::size_t i = 0; i < ways_.size(); ++i) {
      while (has_room && look_at(i)) {
        came = true;
        has_room = receiver_.keep();
      }
      look_for_failure(i);
    }
    take_note();
    push();
    return came;
  }

  /// A rank that computes does not look; its door's thread does when somebody comes.
  void await_answer() TUTTI_REQUIRES(mutex_) {
    const TimePoint now = Clock::system().now();
    const Duration since = now - std::exchange(awaited_at_, now);
    // This process may have stood still.
    down_for_ = ways_.any_up() ? Duration::zero() : down_for_ + std::min(since, kLongestPause);
    if (receiver_.has_bye() || sender_.is_bye_heard()) {
      knock_at_ = TimePoint::max();
    } else if (now >= knock_at_) {
      ways_.knock();
      knock_pause_ = std::min(4 * knock_pause_, kLongestPause);
      knock_at_ = deadline_after(now, knock_pause_);
    }
  }

  void knock_soon() TUTTI_REQUIRES(mutex_) {
    awaited_at_ = Clock::system().now();
    knock_pause_ = kBeforeKnocking;
    knock_at_ = deadline_after(awaited_at_, knock_pause_);
  }

  void push() TUTTI_REQUIRES(mutex_) { sender_.push(ways_.sockets(), receiver_.received()); }

  /// Reads the first connection, and others that may have something; false: none had.
  bool look_at_all() TUTTI_REQUIRES(mutex_) {
    const std::size_t first = ways_.first_up();
    const bool is_eager = eager_ > 0 || receiver_.has_gap();
    const TimePoint silent_since = coarse_now() - kSilence;
    bool came = false;
    if (eager_ > 0) --eager_;
    for (std::size_t i = 0; i < ways_.size(); ++i) {
      Place& place = places_[i];
      const bool looks = i == first || is_eager || std::exchange(place.is_ready, false) ||
                         place.heard_at <= silent_since;
      if (!looks || !look_at(i)) continue;
      came = true;
      if (i != first) eager_ = kEagerReads;
    }
    return came;
  }

  bool look_at(std::size_t connection) TUTTI_REQUIRES(mutex_) {
    Place& place = places_[connection];
    if (receiver_.fill(connection, ways_.socket(connection))) {
      place.heard_at = coarse_now();
      return true;
    }
    const bool may_speak =
        ways_.is_up(connection) && !receiver_.failure(connection) && !receiver_.has_bye();
    const bool is_silent = may_speak && place.heard_at <= coarse_now() - kSilence;
    if (is_silent) lose_silent(connection);
    return false;
  }

  /// Packets vanish, and no end of the connection has come: it may never come.
  void lose_silent(std::size_t connection) TUTTI_REQUIRES(mutex_) {
    const std::string why =
        concat("nothing came for ", milliseconds_since(places_[connection].heard_at), " ms");
    lose(connection, why);
    if (++times_silent_ <= kTimesSaid || times_silent_ % 100 == 0) {
      log_warning(concat("tcp: ", name_, which(connection), ": ", why,
                         ", not even a sign of life; the connection is given up"));
    }
  }

  void look_for_failure(std::size_t connection) TUTTI_REQUIRES(mutex_) {
    const Error* const failure = receiver_.failure(connection);
    if (!failure) return;
    if (failure->code() == ErrorCode::kDataLoss) counters_.damaged_chunks += 1;
    lose(connection, std::string(failure->message()));  // which goes with the failure
  }

  void step() TUTTI_REQUIRES(mutex_) {
    if (ways_.all_up() && !hub_->has_arrivals()) return;
    while (const auto news = ways_.step(receiver_.received())) {
      receiver_.restart(news->connection);
      places_[news->connection].heard_at = coarse_now();
      if (!news->is_first) {
        counters_.reconnects += 1;
        say_that_it_is_back(news->connection);
      }
      try {
        sender_.restart(news->connection, news->received);
      } catch (const Error& error) {
        lose(news->connection, error.message());
      }
      if (sender_.has_left()) knock_soon();
      push();
    }
    if (!ways_.any_up()) give_up_without_progress(false);
  }

  /// Who sleeps in poll() does not know of connections that others take; so whoever reads takes
  /// them, as long as bytes come on another one.
  void step_if_down() TUTTI_REQUIRES(mutex_) {
    if (!ways_.any_up()) step();
  }

  void lose(std::size_t connection, const std::string& why) TUTTI_REQUIRES(mutex_) {
    receiver_.restart(connection);  // what else the connection brought is sent again
    if (ways_.is_up(connection)) places_[connection].lost = {Clock::system().now(), why};
    ways_.lose(connection, why);
    sender_.lose(connection);
    give_up_without_progress(true);
    push();
  }

  /// Its address takes connections, and nothing that is sent over them arrives: it never will.
  void give_up_without_progress(bool is_loss) TUTTI_REQUIRES(mutex_) {
    if (!sender_.has_unacknowledged()) return stall_.reset();
    const TimePoint now = Clock::system().now();
    const std::uint64_t acknowledged = sender_.acknowledged();
    if (!stall_ || stall_->acknowledged != acknowledged) stall_ = {now, now, acknowledged, 0};
    if (is_loss) stall_->lost_at = now;
    if (is_loss) stall_->losses += 1;
    const bool all_break =
        stall_->losses >= kLossesWithoutProgress && now - stall_->since >= patience_;
    const bool none_opens = !ways_.any_up() && now - stall_->lost_at >= patience_ + kReopening;
    if (ways_.is_gone() || (!all_break && !none_opens)) return;
    ways_.give_up(
        concat("it can be reached, but nothing that was sent has arrived for ",
               milliseconds_since(stall_->since) / 1000, " s",
               all_break ? concat(", over ", stall_->losses, " connections") : std::string(),
               ": small packets pass, large ones seem to vanish; check the path MTU (ping -M do -s "
               "1472), try a smaller one (ip link set dev ... mtu 1400)"));
  }

  /// A network that breaks or changes what it carries is news for people, though nothing is lost.
  void say_that_it_is_back(std::size_t connection) TUTTI_REQUIRES(mutex_) {
    const auto lost = std::exchange(places_[connection].lost, std::nullopt);
    const std::uint64_t times = counters_.reconnects;
    if (times > kTimesSaid && times % 100 != 0) return;
    const std::string how = lost
                                ? concat("after ", milliseconds_since(lost->at), " ms: ", lost->why)
                                : std::string("at its wish");
    log_info(concat("tcp: ", name_, which(connection), " is connected again ", how,
                    times >= kTimesSaid ? concat(" (", times, " times so far)") : ""));
  }

  /// ", connection 2 of 4", or nothing where there is only one.
  std::string which(std::size_t connection) const TUTTI_REQUIRES(mutex_) {
    if (ways_.size() == 1) return "";
    return concat(", connection ", connection + 1, " of ", ways_.size());
  }

  const std::string name_;
  const Duration patience_;
  const std::shared_ptr<SessionHub> hub_;
  mutable Mutex mutex_;
  SessionWays ways_ TUTTI_GUARDED_BY(mutex_);
  SessionSender sender_ TUTTI_GUARDED_BY(mutex_);
  SessionReceiver receiver_ TUTTI_GUARDED_BY(mutex_);
  std::vector<Place> places_ TUTTI_GUARDED_BY(mutex_);  // by connection
  StreamCounters counters_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Stall> stall_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t times_silent_ TUTTI_GUARDED_BY(mutex_) = 0;
  int eager_ TUTTI_GUARDED_BY(mutex_) = 0;
  TimePoint looked_at_ TUTTI_GUARDED_BY(mutex_) = coarse_now();
  TimePoint tend_at_ TUTTI_GUARDED_BY(mutex_) = TimePoint::max();
  TimePoint knock_at_ TUTTI_GUARDED_BY(mutex_) = TimePoint::max();
  Duration knock_pause_ TUTTI_GUARDED_BY(mutex_){};
  TimePoint awaited_at_ TUTTI_GUARDED_BY(mutex_){};
  Duration down_for_ TUTTI_GUARDED_BY(mutex_){};  // while this rank stays for the peer
  std::optional<TimePoint> bye_came_at_ TUTTI_GUARDED_BY(mutex_);
  bool is_closed_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<ByteStream> session_stream(SessionParts parts) {
  return std::make_unique<SessionStream>(std::move(parts));
}

}  // namespace tutti::internal
