// Pinned memory through which bytes come from a device.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/gpu/downloads.h"

namespace tutti {

Downloads::~Downloads() {
  MutexLock lock(mutex_);
  for (void* block : idle_) backend_.release_pinned(block);
}

void* Downloads::take() {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      void* const block = idle_.back();
      idle_.pop_back();
      return block;
    }
  }
  return backend_.allocate_pinned(kBlockBytes);
}

void Downloads::give_back(void* block) {
  if (!block) return;
  MutexLock lock(mutex_);
  idle_.push_back(block);
}

}  // namespace tutti
