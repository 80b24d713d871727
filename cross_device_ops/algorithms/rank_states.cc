// Asking and answering.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/rank_states.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr auto kTimeToAsk = std::chrono::milliseconds(300);

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

std::string RankStates::missing(std::uint64_t sequence, const std::vector<int>& awaited) {
  const auto states = ask(deadline_after(Clock::system().now(), kTimeToAsk));
  const bool anybody = std::ranges::any_of(states, &State::answered);
  std::string text;
  for (int r = 0; r < link_.size(); ++r) {
    const State& state = states[static_cast<std::size_t>(r)];
    const bool came = state.answered ? state.calls_begun > sequence
                                     : !anybody && !std::ranges::binary_search(awaited, r);
    if (r != link_.rank && !came) text += concat(text.empty() ? "" : ", ", "rank ", r);
  }
  if (!text.empty()) return text + " did not come";
  return concat("all came, but a message is late: of rank ", join(awaited, " or "));
}

std::vector<std::string> RankStates::whereabouts(TimePoint deadline) {
  std::vector<std::string> texts;
  for (const State& state : ask(deadline)) {
    texts.push_back(state.answered ? state.text : "does not answer");
  }
  texts[static_cast<std::size_t>(link_.rank)].clear();
  return texts;
}

}  // namespace tutti::internal
