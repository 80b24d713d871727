// A save on a thread of its own.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/background_save.h"

#include <new>
#include <utility>

namespace tutti::internal {

std::optional<Error> error_of(const std::function<void()>& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted, "Checkpoint: not enough memory to save");
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, concat("Checkpoint: cannot save: ", error.what()));
  }
}

BackgroundSave::BackgroundSave(std::function<void()> save) {
  thread_ = Executor::system().start("checkpoint",
                                     [this, save = std::move(save)] { error_ = error_of(save); });
}

const std::optional<Error>& BackgroundSave::wait() {
  if (thread_) thread_->join();
  thread_.reset();
  return error_;
}

}  // namespace tutti::internal
