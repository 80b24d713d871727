// Accepting, shaking hands, refusing.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/acceptor.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "tutti/cluster/net/durations.h"
#include "tutti/cluster/net/interruption.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kMostNewcomers = 256;
constexpr int kAcceptsInARow = 64;

}  // namespace

bool is_rank(const PeerHello& hello, int rank, std::uint64_t nonce) {
  return hello.job == "rank" && hello.index == rank && hello.incarnation == nonce;
}

/// A connection that has proven nothing yet.
struct Acceptor::Newcomer {
  Newcomer(FileDescriptor opened, const PeerHello& own, const JobSecret& secret)
      : socket(std::move(opened)),
        handshake(Handshake::Side::kServer, with_new_nonce(own), secret) {}
  FileDescriptor socket;
  Handshake handshake;
  bool is_local = false;
  bool is_ready = false;  // poll() saw something
  bool has_spoken = false;
  std::string address;
  TimePoint end{};
};

Acceptor::Acceptor(std::string who, PeerHello own, JobSecret secret,
                   std::vector<Listener> listeners, Callbacks callbacks)
    : own_(std::move(own)),
      secret_(std::move(secret)),
      listeners_(std::move(listeners)),
      callbacks_(std::move(callbacks)),
      refusals_(who),
      strangers_(std::move(who)) {}

Acceptor::~Acceptor() = default;

void Acceptor::serve(pollfd& other, TimePoint deadline, const Interruption* interruption) {
  const int event = interruption == nullptr ? -1 : interruption->event().get();
  std::vector<pollfd> descriptors{other, {event, POLLIN, 0}};  // poll() skips a descriptor of -1
  for (const Newcomer& newcomer : newcomers_) {
    descriptors.push_back({newcomer.socket.get(), POLLIN, 0});
    deadline = std::min(deadline, newcomer.end);
  }
  const bool accepts = Clock::system().now() >= accept_again_;
  if (!accepts) deadline = std::min(deadline, accept_again_);
  for (const Listener& listener : listeners_) {
    if (accepts) descriptors.push_back({listener.socket.get(), POLLIN, 0});
  }
  (void)poll_until(descriptors, deadline);
  if (interruption != nullptr) interruption->check();
  other.revents = descriptors[0].revents;
  std::size_t i = 2;
  for (Newcomer& newcomer : newcomers_) newcomer.is_ready = descriptors[i++].revents != 0;
  const TimePoint now = Clock::system().now();
  read_all(now);
  if (now < accept_again_) return;
  for (const Listener& listener : listeners_) accept_all(listener, now);
}

void Acceptor::read_all(TimePoint now) {
  std::erase_if(newcomers_, [&](Newcomer& newcomer) {
    if (newcomer.is_ready && is_settled(newcomer, now)) return true;
    if (now < newcomer.end) return false;
    strangers_.note(concat(newcomer.address, " was silent or too slow"), now);
    return true;
  });
}

/// Reads what the handshake waits for, and nothing behind it: that is the connection's. False: the
/// other side has closed it.
bool Acceptor::read(Newcomer& newcomer) {
  std::array<std::byte, 1024> bytes{};
  const std::size_t wanted = std::min(bytes.size(), newcomer.handshake.num_awaited());
  std::size_t count = 0;
  const ByteFlow flow = read_now(newcomer.socket, std::span(bytes).first(wanted), count);
  newcomer.has_spoken = newcomer.has_spoken || count > 0;
  (void)newcomer.handshake.take(std::span<const std::byte>(bytes).first(count));
  return flow == ByteFlow::kOpen;
}

/// Whether it ended here.
bool Acceptor::is_settled(Newcomer& newcomer, TimePoint now) {
  const bool is_open = read(newcomer);
  Handshake& handshake = newcomer.handshake;
  if (handshake.is_proven()) {
    if (!newcomer.is_local) limit_.give_back(newcomer.address);
    handshake.decide(callbacks_.decide(*handshake.peer(), ""));
  }
  const std::vector<std::byte> answer = handshake.bytes_to_send();
  const bool was_sent = send_whole(newcomer.socket, answer);
  switch (handshake.state()) {
    case Handshake::State::kRefused:
      refuse(newcomer, handshake.reason(), now);
      if (handshake.is_final()) (void)callbacks_.decide(*handshake.peer(), handshake.reason());
      return true;
    case Handshake::State::kStranger:
      strangers_.note(concat(newcomer.address, " is no rank of tutti"), now);
      return true;
    case Handshake::State::kDone:
      if (was_sent) {
        callbacks_.arrived(handshake.peer()->index, std::move(newcomer.socket), newcomer.is_local);
      }
      return true;
    case Handshake::State::kRunning:
      break;
  }
  if (!is_open && handshake.peer()) {
    refuse(newcomer,
           concat(handshake.peer()->to_string(), " left when it had heard this rank's proof; it ",
                  "died, or has another secret: give all processes the same ",
                  "TUTTI_JOB_SECRET_FILE"),
           now);
  } else if (!is_open && newcomer.has_spoken) {
    strangers_.note(concat(newcomer.address, " left in the middle of its hello"), now);
  }
  return !is_open;
}

void Acceptor::refuse(const Newcomer& newcomer, const std::string& reason, TimePoint now) {
  last_refusal_ = concat(newcomer.address, ": ", reason);
  refusals_.note(last_refusal_, now);
}

void Acceptor::accept_all(const Listener& listener, TimePoint now) {
  for (int i = 0; i < kAcceptsInARow; ++i) {
    errno = 0;
    FileDescriptor socket = accept_from(listener.socket);
    if (socket.is_open()) {
      admit(std::move(socket), listener.endpoint.is_local(), now);
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      accept_again_ = deadline_after(now, durations::kTryAgain);
      if (!newcomers_.empty()) newcomers_.pop_front();
    }
    return;
  }
}

void Acceptor::admit(FileDescriptor socket, bool is_local, TimePoint now) {
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
  Newcomer& newcomer = newcomers_.emplace_back(std::move(socket), own_, secret_);
  newcomer.is_local = is_local;
  newcomer.address = address;
  newcomer.end = deadline_after(now, durations::kUnreachableAfter);
}

}  // namespace tutti::internal
