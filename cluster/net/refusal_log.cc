// One line per pause.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/refusal_log.h"

#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti::internal {

RefusalLog::RefusalLog(std::string who, Duration pause) : who_(std::move(who)), pause_(pause) {}

void RefusalLog::note(std::string_view reason, TimePoint now) {
  if (now < next_) {
    ++num_unsaid_;
    return;
  }
  next_ = deadline_after(now, pause_);
  log_warning(concat(who_, ": refused a connection: ", reason,
                     num_unsaid_ > 0 ? concat(" (and ", num_unsaid_, " more)") : ""));
  num_unsaid_ = 0;
}

}  // namespace tutti::internal
