// A rank of a group and the way to the others; small questions between them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/algorithms/rank_link.h"

#include <algorithm>
#include <cstring>

#include "tutti/cross_device_ops/told_reason.h"

namespace tutti::internal {
namespace {

std::uint64_t tag_of(std::uint64_t group, Purpose purpose) {
  return group << 16 | static_cast<std::uint64_t>(purpose);
}

// The finalizer of MurmurHash3.
std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15u;
  hash = (hash ^ (hash >> 33)) * 0xFF51AFD7ED558CCDu;
  hash = (hash ^ (hash >> 33)) * 0xC4CEB9FE1A85EC53u;
  return hash ^ (hash >> 33);
}

std::span<std::byte> bytes_of(std::span<std::uint64_t> numbers) {
  return std::as_writable_bytes(numbers);
}

// A peer that is gone or a transport that was aborted ends conversations, not the caller.
bool ended(Work& work) {
  try {
    return work.test();
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

std::unique_ptr<Work> RankLink::send(int peer, Purpose purpose, std::span<const std::byte> head,
                                     std::span<const std::byte> body) const {
  return transport->send(ranks[static_cast<std::size_t>(peer)], tag_of(group, purpose), head, body);
}

std::unique_ptr<Work> RankLink::recv(int peer, Purpose purpose, std::span<std::byte> head,
                                     std::span<std::byte> body) const {
  return transport->recv(ranks[static_cast<std::size_t>(peer)], tag_of(group, purpose), head, body);
}

void RankLink::exchange_bytes(Purpose purpose, std::span<std::byte> values, TimePoint deadline,
                              std::string_view who) const {
  const std::size_t bytes = values.size() / ranks.size();
  const auto value_of = [&](int r) {
    return values.subspan(static_cast<std::size_t>(r) * bytes, bytes);
  };
  std::vector<std::unique_ptr<Work>> sends, receives(ranks.size());
  for (int r = 0; r < size(); ++r) {
    if (r == rank) continue;
    receives[static_cast<std::size_t>(r)] = recv(r, purpose, {}, value_of(r));
    sends.push_back(send(r, purpose, {}, value_of(rank)));
  }
  std::vector<std::string> late;
  for (int r = 0; r < size(); ++r) {
    if (r == rank) continue;
    try {
      receives[static_cast<std::size_t>(r)]->wait(deadline);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDeadlineExceeded) throw;
      late.push_back(concat("rank ", r));
    }
  }
  if (!late.empty()) {
    fail(ErrorCode::kDeadlineExceeded, who, ": expected all ", size(), " ranks", kMissing,
         join(late), " did not come");
  }
  for (const auto& each : sends) each->wait(deadline);
}

RankLink RankLink::subgroup(const std::vector<int>& members, std::uint32_t number) const {
  RankLink link{.transport = transport, .ranks = {}, .group = mixed(group, number)};
  for (const int member : members) {
    link.ranks.push_back(ranks[static_cast<std::size_t>(member)]);
    link.group = mixed(link.group, static_cast<std::uint64_t>(member));
  }
  link.group >>= 16;
  const auto own = std::ranges::find(members, rank);
  TUTTI_CHECK(own != members.end(), "subgroup: rank ", rank, " is not a member");
  link.rank = static_cast<int>(own - members.begin());
  return link;
}

RankLink link_all(std::shared_ptr<Transport> transport) {
  RankLink link{.transport = transport, .ranks = {}, .rank = transport->rank()};
  for (int r = 0; r < transport->size(); ++r) link.ranks.push_back(r);
  return link;
}

RankStates::RankStates(RankLink link)
    : link_(std::move(link)), questions_(static_cast<std::size_t>(link_.size())) {}

void RankStates::expect_question(int peer) {
  std::optional<Question>& question = questions_[static_cast<std::size_t>(peer)];
  question.emplace();
  question->work = link_.recv(peer, Purpose::kQuery, bytes_of({&question->number, 1}), {});
}

void RankStates::answer(int peer, std::uint64_t number, const std::string& text) {
  auto sent = std::make_unique<Answer>();
  sent->head = {number, calls_begun_.load()};
  std::memcpy(sent->text.data(), text.data(), std::min(text.size(), kTextBytes));
  sent->work = link_.send(peer, Purpose::kAnswer, bytes_of(sent->head), sent->text);
  answers_.push_back(std::move(sent));
}

void RankStates::tend(const std::function<std::string()>& own_state) {
  MutexLock lock(tend_mutex_);
  if (closed_) return;
  try {
    std::erase_if(answers_, [](const auto& answer) { return ended(*answer->work); });
    std::optional<std::string> text;
    for (int peer = 0; peer < link_.size(); ++peer) {
      if (peer == link_.rank) continue;
      std::optional<Question>& question = questions_[static_cast<std::size_t>(peer)];
      if (!question) expect_question(peer);
      if (!question->work->test()) continue;
      if (!text) text = own_state ? own_state() : last_text_;
      answer(peer, question->number, *text);
      expect_question(peer);
    }
    if (text) last_text_ = *text;
  } catch (const Error&) {
    closed_ = true;  // the group has ended
  }
}

std::unique_ptr<Work> RankStates::hear(int peer, Answer& answer) {
  return link_.recv(peer, Purpose::kAnswer, bytes_of(answer.head), answer.text);
}

bool RankStates::take_answer(int peer, Answer& answer, std::uint64_t number, State& state) {
  if (!answer.work->test()) return false;
  if (answer.head[0] != number) {  // to an earlier question that did not wait so long
    answer.work = hear(peer, answer);
    return false;
  }
  state.answered = true;
  state.calls_begun = answer.head[1];
  const auto* const text = reinterpret_cast<const char*>(answer.text.data());
  state.text.assign(text, ::strnlen(text, kTextBytes));
  return true;
}

std::vector<RankStates::State> RankStates::ask(TimePoint deadline) {
  MutexLock lock(ask_mutex_);
  std::uint64_t number = ++last_number_;
  const auto size = static_cast<std::size_t>(link_.size());
  std::vector<State> states(size);
  std::vector<std::unique_ptr<Work>> sent(size);
  std::vector<std::unique_ptr<Answer>> answers(size);
  std::size_t waiting = size - 1;
  try {
    for (int peer = 0; peer < link_.size(); ++peer) {
      if (peer == link_.rank) continue;
      const auto p = static_cast<std::size_t>(peer);
      sent[p] = link_.send(peer, Purpose::kQuery, bytes_of({&number, 1}), {});
      answers[p] = std::make_unique<Answer>();
      answers[p]->work = hear(peer, *answers[p]);
    }
    while (waiting > 0 && Clock::system().now() < deadline) {
      for (std::size_t p = 0; p < size; ++p) {
        if (!answers[p] || states[p].answered) continue;
        if (take_answer(static_cast<int>(p), *answers[p], number, states[p])) --waiting;
      }
      tend({});  // others may be asking too
      if (waiting > 0) Clock::system().sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const Error&) {
    // The group has ended: what was heard so far is the answer.
  }
  return states;
}

}  // namespace tutti::internal
