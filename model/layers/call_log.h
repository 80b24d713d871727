// What a layer that is called again has to be given as it was the first time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

/// Of a call that may be repeated: the keys of random numbers that it asked for, and the masks of
/// its results.
struct CallLog {
  std::vector<RandomKey> keys;
  std::vector<Tensor> result_masks;
  bool is_full = false;
};

/// While the first one of a log lives, keys are written to it; later ones give them again. Those
/// inside of them, of calls within the call, get the same keys.
class CallLogScope {
 public:
  explicit CallLogScope(CallLog& log)
      : log_(log), repeats_(log.is_full), outer_(std::exchange(innermost, this)) {}
  ~CallLogScope() {
    innermost = outer_;
    log_.is_full = true;
  }
  CallLogScope(const CallLogScope&) = delete;
  CallLogScope& operator=(const CallLogScope&) = delete;

  /// The next key of the innermost scope that repeats, or else `make()`.
  template <class Make>
  static RandomKey next_key(const Make& make) {
    CallLogScope* scope = innermost;
    while (scope && !scope->repeats_) scope = scope->outer_;
    if (scope) {
      TUTTI_CHECK(scope->next_ < scope->log_.keys.size(),
                  "a layer asks for more random numbers when it is called again");
    }
    const RandomKey key = scope ? scope->log_.keys[scope->next_++] : make();
    for (CallLogScope* each = innermost; each != scope; each = each->outer_) {
      each->log_.keys.push_back(key);
    }
    return key;
  }

 private:
  static inline thread_local CallLogScope* innermost = nullptr;
  CallLog& log_;
  const bool repeats_;
  std::size_t next_ = 0;
  CallLogScope* const outer_;
};

}  // namespace tutti::internal
