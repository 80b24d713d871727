// Reads and writes of a stream, one of each at a time.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/job_stream.h"

#include <utility>

namespace tutti::internal {

JobStream::JobStream(const GrpcOptions& options) : stub_(v1::Job::NewStub(open_channel(options))) {
  stub_->async()->Join(&context_, this);
  StartRead(&incoming_);
  start();
}

void JobStream::OnReadDone(bool ok) {
  {
    MutexLock lock(mutex_);
    if (ok) received_.push_back(incoming_);
    if (!ok) is_open_ = false;
    changed_.notify_all();
  }
  if (ok) StartRead(&incoming_);
}

void JobStream::OnWriteDone(bool ok) {
  MutexLock lock(mutex_);
  unsent_.pop_front();
  is_writing_ = false;
  if (!ok) {  // what the server said before it left is still to be read
    can_write_ = false;
    unsent_.clear();
  }
  write_next();
}

void JobStream::send(v1::MemberReport report) {
  MutexLock lock(mutex_);
  if (!is_open_ || !can_write_) return;
  unsent_.push_back(std::move(report));
  write_next();
}

std::vector<v1::JobEvent> JobStream::receive(TimePoint deadline) {
  MutexLock lock(mutex_);
  const auto is_over = [this]() TUTTI_REQUIRES(mutex_) {
    return !received_.empty() || is_awake_ || !is_open_;
  };
  changed_.wait_until(mutex_, deadline, is_over);
  is_awake_ = false;
  return std::exchange(received_, {});
}

void JobStream::wake() {
  MutexLock lock(mutex_);
  is_awake_ = true;
  changed_.notify_all();
}

bool JobStream::is_open() {
  MutexLock lock(mutex_);
  if (!is_open_) release();
  return is_open_ || !received_.empty();
}

void JobStream::write_next() {
  if (is_writing_ || unsent_.empty() || has_released_) return;
  is_writing_ = true;
  StartWrite(&unsent_.front());
}

}  // namespace tutti::internal
