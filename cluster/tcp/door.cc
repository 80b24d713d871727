// Accepting, shaking hands, showing out.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/door.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "tutti/cluster/tcp/stream.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr Duration kPatience = std::chrono::seconds(5);
constexpr std::size_t kMostNewcomers = 256;
// Of ranks that have proven themselves; a rank takes them as soon as it looks.
constexpr std::size_t kMostArrivals = 1024;
constexpr int kAcceptsInARow = 64;
constexpr Duration kPauseWithoutDescriptors = std::chrono::milliseconds(100);
constexpr Duration kStrangersPause = std::chrono::seconds(10);

void strike(const FileDescriptor& event) {
  const std::uint64_t one = 1;
  (void)!::write(event.get(), &one, sizeof(one));
}

}  // namespace

/// A connection that has proven nothing yet, or has not said what it wants.
struct Door::Newcomer {
  Newcomer(FileDescriptor opened, const RankIdentity& own)
      : socket(std::move(opened)), handshake(rank_handshake(Handshake::Side::kServer, own)) {}
  FileDescriptor socket;
  Handshake handshake;
  bool is_local = false;
  bool is_ready = false;  // poll() saw something
  bool has_spoken = false;
  std::string address;
  TimePoint end{};
  std::array<std::byte, kSealedResumeBytes> opening{};
  std::size_t filled = 0;
};

Door::Door(std::string who, RankIdentity own, std::vector<Listener> listeners)
    : own_(std::move(own)),
      listeners_(std::move(listeners)),
      bell_(make_wake_event()),
      wake_(make_wake_event()),
      refusals_(who),
      strangers_(std::move(who), kStrangersPause) {
  thread_ = Executor::system().start("data-door", [this] { serve(); });
}

Door::~Door() {
  stopping_ = true;
  strike(wake_);
  thread_->join();
}

std::optional<Door::Arrival> Door::take() {
  MutexLock lock(mutex_);
  if (arrivals_.empty()) return std::nullopt;
  Arrival first = std::move(arrivals_.front());
  arrivals_.pop_front();
  num_arrivals_.fetch_sub(1);
  std::uint64_t count = 0;
  if (arrivals_.empty()) (void)!::read(bell_.get(), &count, sizeof(count));
  return first;
}

void Door::ring(Arrival arrival) {
  MutexLock lock(mutex_);
  if (arrivals_.size() == kMostArrivals) {
    arrivals_.pop_front();
    num_arrivals_.fetch_sub(1);
  }
  arrivals_.push_back(std::move(arrival));
  num_arrivals_.fetch_add(1);
  has_visitors_ = true;
  strike(bell_);
}

std::string Door::last_refusal() const {
  MutexLock lock(mutex_);
  return last_refusal_;
}

void Door::call(std::function<TimePoint(bool)> action) {
  MutexLock lock(mutex_);
  action_ = std::move(action);
  action_at_ = TimePoint::min();
  strike(wake_);
}

/// When the next one is due.
TimePoint Door::act() {
  std::function<TimePoint(bool)> action;
  {
    MutexLock lock(mutex_);
    if (!action_ || (!has_visitors_ && Clock::system().now() < action_at_)) return action_at_;
    action = action_;
  }
  const TimePoint next = action(std::exchange(has_visitors_, false));
  MutexLock lock(mutex_);
  return action_at_ = next;
}

void Door::serve() {
  while (!stopping_) {
    wait();
    const TimePoint now = Clock::system().now();
    read_all(now);
    if (now < accept_again_) continue;
    for (const Listener& listener : listeners_) accept_all(listener, now);
  }
}

void Door::wait() {
  descriptors_.assign({{wake_.get(), POLLIN, 0}});
  TimePoint end = act();
  for (const Newcomer& newcomer : newcomers_) {
    descriptors_.push_back({newcomer.socket.get(), POLLIN, 0});
    end = std::min(end, newcomer.end);
  }
  const bool accepts = Clock::system().now() >= accept_again_;
  if (!accepts) end = std::min(end, accept_again_);
  for (const Listener& listener : listeners_) {
    if (accepts) descriptors_.push_back({listener.socket.get(), POLLIN, 0});
  }
  (void)poll_until(descriptors_, end);
  std::uint64_t count = 0;
  if (descriptors_[0].revents != 0) (void)!::read(wake_.get(), &count, sizeof(count));
  std::size_t i = 1;
  for (Newcomer& newcomer : newcomers_) newcomer.is_ready = descriptors_[i++].revents != 0;
}

void Door::read_all(TimePoint now) {
  std::erase_if(newcomers_, [&](Newcomer& newcomer) {
    const bool settled = newcomer.is_ready && is_settled(newcomer, now);
    if (settled || now < newcomer.end) return settled;
    strangers_.note(concat(newcomer.address, " was silent or too slow"), now);
    return true;
  });
}

bool Door::is_settled(Newcomer& newcomer, TimePoint now) {
  const bool was_running = newcomer.handshake.state() == Handshake::State::kRunning;
  if (was_running && shake_hands(newcomer, now)) return true;
  return newcomer.handshake.state() == Handshake::State::kDone && read_opening(newcomer, now);
}

/// Whether it ended here.
bool Door::shake_hands(Newcomer& newcomer, TimePoint now) {
  std::array<std::byte, 1024> bytes{};
  std::size_t count = 0;
  const ByteFlow flow = read_now(newcomer.socket, bytes, count);
  newcomer.has_spoken = newcomer.has_spoken || count > 0;
  Handshake& handshake = newcomer.handshake;
  const std::size_t taken = handshake.take(std::span<const std::byte>(bytes).first(count));
  if (handshake.is_proven()) handshake.decide("");
  (void)send_opening(newcomer.socket, handshake.bytes_to_send());
  switch (handshake.state()) {
    case Handshake::State::kRefused:
      refuse(newcomer, handshake.reason(), now);
      return true;
    case Handshake::State::kStranger:
      strangers_.note(concat(newcomer.address, " is no rank of tutti"), now);
      return true;
    case Handshake::State::kDone:
      if (!newcomer.is_local) limit_.give_back(newcomer.address);
      // Nothing may come before the answer to the proof.
      return taken < count || flow == ByteFlow::kClosed;
    case Handshake::State::kRunning:
      break;
  }
  if (flow == ByteFlow::kClosed && handshake.peer()) {
    refuse(newcomer,
           concat(handshake.peer()->to_string(), " left when it had heard this rank's proof; it ",
                  "died, or has another secret: give all processes the same ",
                  "TUTTI_JOB_SECRET_FILE"),
           now);
  } else if (flow == ByteFlow::kClosed && newcomer.has_spoken) {
    strangers_.note(concat(newcomer.address, " left in the middle of its hello"), now);
  }
  return flow == ByteFlow::kClosed;
}

bool Door::read_opening(Newcomer& newcomer, TimePoint now) {
  const auto place = std::span(newcomer.opening).subspan(newcomer.filled);
  std::size_t count = 0;
  const ByteFlow flow = read_now(newcomer.socket, place, count);
  newcomer.filled += count;
  if (newcomer.filled < newcomer.opening.size()) return flow == ByteFlow::kClosed;
  const Handshake& handshake = newcomer.handshake;
  try {
    const Resume opening =
        decode_resume(unsealed(newcomer.opening, handshake.session_key(Handshake::Side::kClient)));
    if (!is_rank(*handshake.peer(), opening.hello.from, opening.hello.from_nonce)) {
      fail(ErrorCode::kInvalidArgument, handshake.peer()->to_string(), " says that it is rank ",
           opening.hello.from);
    }
    ring({std::move(newcomer.socket), newcomer.is_local, opening,
          handshake.session_key(Handshake::Side::kServer)});
  } catch (const Error& error) {
    refuse(newcomer, error.message(), now);
  }
  return true;
}

void Door::refuse(const Newcomer& newcomer, const std::string& reason, TimePoint now) {
  const std::string line = concat(newcomer.address, ": ", reason);
  refusals_.note(line, now);
  MutexLock lock(mutex_);
  last_refusal_ = line;
}

void Door::accept_all(const Listener& listener, TimePoint now) {
  for (int i = 0; i < kAcceptsInARow; ++i) {
    errno = 0;
    FileDescriptor socket = accept_from(listener.socket);
    if (socket.is_open()) {
      admit(std::move(socket), listener.endpoint.is_local(), now);
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      accept_again_ = deadline_after(now, kPauseWithoutDescriptors);
      if (!newcomers_.empty()) newcomers_.pop_front();
    }
    return;
  }
}

void Door::admit(FileDescriptor socket, bool is_local, TimePoint now) {
  const std::string address =
      is_local ? concat("pid ", peer_process(socket).pid) : address_of_peer(socket);
  if (is_local && !peer_process(socket).same_user) {
    strangers_.note(concat(address, " is of another user; expected user ", ::geteuid()), now);
    return;
  }
  if (!is_local && !limit_.allows(address, now)) {
    strangers_.note(concat(address, " opens too many"), now);
    return;
  }
  if (newcomers_.size() == kMostNewcomers) newcomers_.pop_front();
  Newcomer& newcomer = newcomers_.emplace_back(std::move(socket), own_);
  newcomer.is_local = is_local;
  newcomer.address = address;
  newcomer.end = deadline_after(now, kPatience);
  has_visitors_ = true;
}

}  // namespace tutti::internal
