// Reading, changing and waiting for values.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/store_table.h"

#include <algorithm>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kAnswersKept = 256;  // per member; it asks few things at once

std::string_view name() { return "control store"; }

}  // namespace

std::vector<StoreTable::Answer> StoreTable::apply(std::uint64_t member, std::uint64_t id,
                                                  const StoreRequest& request) {
  using Action = StoreRequest::Action;
  std::vector<Answer> answers;
  const auto found = values_.find(request.key);
  const bool is_there = found != values_.end();
  switch (request.action) {
    case Action::kGet:
      answers.push_back({member, id, {}});
      if (is_there) answers.back().reply.value = found->second;
      return answers;
    case Action::kWait:
      if (is_there) {
        answers.push_back({member, id, {ErrorCode::kOk, "", found->second, false}});
      } else {
        waiters_.push_back({member, id, request.key});
      }
      return answers;
    case Action::kCancelWait:
      std::erase_if(waiters_, [&](const Waiter& w) { return w.member == member && w.id == id; });
      return answers;
    default:
      break;
  }
  auto& done = done_[member];
  const auto [place, is_new] = done.try_emplace(id);
  if (is_new) place->second = change(request);
  answers.push_back({member, id, place->second});
  if (done.size() > kAnswersKept) done.erase(done.begin());
  if (is_new) answer_waiters(request.key, answers);
  return answers;
}

StoreReply StoreTable::change(const StoreRequest& request) {
  using Action = StoreRequest::Action;
  const auto found = values_.find(request.key);
  const bool is_there = found != values_.end();
  if (request.action == Action::kRemove) {
    if (is_there) erase(request.key);
    return {ErrorCode::kOk, "", std::nullopt, is_there};
  }
  if (request.action == Action::kCompareAndSet) {
    const bool is_as_expected =
        request.expected ? is_there && found->second == *request.expected : !is_there;
    if (!is_as_expected) return {};
  }
  return put(request.key, request.value);
}

StoreReply StoreTable::put(const std::string& key, const std::string& value) {
  try {
    check_store_key(name(), key);
    check_store_value(name(), key, value);
  } catch (const Error& error) {
    return {error.code(), error.message(), std::nullopt, false};
  }
  const auto found = values_.find(key);
  const std::size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
  const std::size_t after = bytes_ - before + key.size() + value.size();
  if (after > most_bytes_) {
    return {ErrorCode::kResourceExhausted,
            concat(name(), ": no room for '", key, "'; expected at most ", most_bytes_,
                   " bytes in all, got ", after, "; try files for large values"),
            std::nullopt, false};
  }
  bytes_ = after;
  values_[key] = value;
  return {ErrorCode::kOk, "", std::nullopt, true};
}

void StoreTable::erase(const std::string& key) {
  const auto found = values_.find(key);
  bytes_ -= key.size() + found->second.size();
  values_.erase(found);
}

void StoreTable::answer_waiters(const std::string& key, std::vector<Answer>& answers) {
  const auto found = values_.find(key);
  if (found == values_.end()) return;
  for (const Waiter& waiter : waiters_) {
    if (waiter.key != key) continue;
    answers.push_back({waiter.member, waiter.id, {ErrorCode::kOk, "", found->second, false}});
  }
  std::erase_if(waiters_, [&key](const Waiter& waiter) { return waiter.key == key; });
}

void StoreTable::forget(std::uint64_t member) {
  done_.erase(member);
  std::erase_if(waiters_, [member](const Waiter& waiter) { return waiter.member == member; });
}

}  // namespace tutti::internal
