// Accepting peers that connect again.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/tcp/session_hub.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr Duration kPatience = std::chrono::seconds(5);
constexpr std::size_t kMostNewcomers = 64;

}  // namespace

SessionHub::SessionHub(int rank, std::vector<std::uint64_t> nonces, Listener listener)
    : rank_(rank),
      nonces_(std::move(nonces)),
      listener_(std::move(listener)),
      arrivals_(nonces_.size()) {}

void SessionHub::look() {
  MutexLock lock(mutex_);
  const TimePoint now = Clock::system().now();
  while (true) {
    FileDescriptor socket = accept_from(listener_.socket);
    if (!socket.is_open()) break;
    if (newcomers_.size() == kMostNewcomers) newcomers_.pop_front();
    newcomers_.emplace_back().socket = std::move(socket);
    newcomers_.back().end = deadline_after(now, kPatience);
  }
  std::erase_if(newcomers_, [&](Newcomer& newcomer) TUTTI_REQUIRES(mutex_) {
    return is_settled(newcomer) || now >= newcomer.end;
  });
}

bool SessionHub::belongs(const Hello& hello) const {
  return hello.to == rank_ && hello.size == size() && hello.from != rank_ &&
         hello.to_nonce == nonce(rank_) && hello.from_nonce == nonce(hello.from);
}

bool SessionHub::is_settled(Newcomer& newcomer) {
  while (newcomer.filled < newcomer.bytes.size()) {
    const ssize_t count = ::recv(newcomer.socket.get(), newcomer.bytes.data() + newcomer.filled,
                                 newcomer.bytes.size() - newcomer.filled, MSG_DONTWAIT);
    if (count > 0) {
      newcomer.filled += static_cast<std::size_t>(count);
    } else if (count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      return true;
    } else {
      break;
    }
  }
  if (newcomer.filled < kHelloBytes) return false;
  const std::span<const std::byte, kResumeBytes> bytes(newcomer.bytes);
  try {
    if (!is_resume(bytes.first<kHelloBytes>())) return answer_hello(newcomer);
    if (newcomer.filled < kResumeBytes) return false;
    const Resume resume = decode_resume(bytes);
    if (belongs(resume.hello)) {
      keep(resume.hello.from, {std::move(newcomer.socket), resume.received, false});
    }
  } catch (const Error&) {
    // A stranger, or damaged: it may try again.
  }
  return true;
}

/// A rank of a new run has found this run's address, and will look again; or one of this run had no
/// answer before this rank was through with its rendezvous.
bool SessionHub::answer_hello(Newcomer& newcomer) {
  const Hello hello = decode_hello(std::span<const std::byte>(newcomer.bytes).first<kHelloBytes>());
  const bool is_ours = belongs(hello) && hello.from > rank_;
  Welcome welcome;
  if (!is_ours) {
    welcome = {Welcome::Verdict::kStale, concat("rank ", hello.from, " looks for rank ", hello.to,
                                                " of another run; here is rank ", rank_)};
  }
  const auto answer = encode(welcome);
  (void)!::send(newcomer.socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (is_ours) keep(hello.from, {std::move(newcomer.socket), 0, true});
  return true;
}

void SessionHub::keep(int rank, Arrival arrival) {
  auto& place = arrivals_[static_cast<std::size_t>(rank)];
  if (!place) num_arrivals_.fetch_add(1);
  place = std::move(arrival);
}

std::optional<SessionHub::Arrival> SessionHub::take(int rank) {
  MutexLock lock(mutex_);
  auto& place = arrivals_[static_cast<std::size_t>(rank)];
  if (place) num_arrivals_.fetch_sub(1);
  return std::exchange(place, std::nullopt);
}

void SessionHub::watch(std::vector<pollfd>& descriptors) const {
  MutexLock lock(mutex_);
  descriptors.push_back({listener_.socket.get(), POLLIN, 0});
  for (const Newcomer& newcomer : newcomers_) {
    descriptors.push_back({newcomer.socket.get(), POLLIN, 0});
  }
}

}  // namespace tutti::internal
