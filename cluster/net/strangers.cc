// Buckets that fill again with time; one line of the log per pause.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/net/strangers.h"

#include <algorithm>
#include <utility>

#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::internal {

double AddressLimit::left_in(const Bucket& bucket, TimePoint now) const {
  const double seconds = std::chrono::duration<double>(now - bucket.at).count();
  return std::min(most_, bucket.left + seconds * per_second_);
}

bool AddressLimit::allows(const std::string& address, TimePoint now) {
  if (buckets_.size() >= kMostAddresses && !buckets_.contains(address)) forget_idle(now);
  Bucket& bucket = buckets_.try_emplace(address, Bucket{most_, now}).first->second;
  bucket = {left_in(bucket, now), now};
  if (bucket.left < 1) return false;
  bucket.left -= 1;
  return true;
}

void AddressLimit::give_back(const std::string& address) {
  const auto found = buckets_.find(address);
  if (found != buckets_.end()) found->second.left = std::min(most_, found->second.left + 1);
}

void AddressLimit::forget_idle(TimePoint now) {
  std::erase_if(buckets_, [&](const auto& each) { return left_in(each.second, now) >= most_; });
  if (buckets_.size() < kMostAddresses) return;
  buckets_.erase(
      std::ranges::min_element(buckets_, {}, [](const auto& each) { return each.second.at; }));
}

RefusalLog::RefusalLog(std::string who) : who_(std::move(who)) {}

void RefusalLog::note(std::string_view reason, TimePoint now) {
  if (now < next_) {
    ++num_unsaid_;
    return;
  }
  next_ = deadline_after(now, durations::kSayAgainEvery);
  log_warning(concat(who_, ": refused a connection: ", reason,
                     num_unsaid_ > 0 ? concat(" (and ", num_unsaid_, " more)") : ""));
  num_unsaid_ = 0;
}

}  // namespace tutti::internal
