// Reads and writes of a stream, one of each at a time.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/job_stream.h"

#include <utility>

namespace tutti::internal {

JobStream::JobStream(const GrpcOptions& options) : stub_(v1::Job::NewStub(open_channel(options))) {
  stub_->async()->Join(&context_, this);
  AddHold();  // for writes that are started outside of On...()
  StartRead(&incoming_);
  StartCall();
}

JobStream::~JobStream() {
  context_.TryCancel();
  close();
  (void)done_.wait_until(TimePoint::max());
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

void JobStream::OnDone(const grpc::Status& status) {
  {
    MutexLock lock(mutex_);
    status_ = status;
    is_open_ = false;
    changed_.notify_all();
  }
  done_.set();
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
  if (!is_open_ && !has_released_) release();
  return is_open_ || !received_.empty();
}

grpc::Status JobStream::wait_for_end(TimePoint deadline) {
  close();
  if (!done_.wait_until(deadline)) return {grpc::StatusCode::DEADLINE_EXCEEDED, "no answer"};
  MutexLock lock(mutex_);
  return status_;
}

void JobStream::write_next() {
  if (is_writing_ || unsent_.empty() || has_released_) return;
  is_writing_ = true;
  StartWrite(&unsent_.front());
}

void JobStream::close() {
  MutexLock lock(mutex_);
  is_open_ = false;
  if (!has_released_) release();
}

void JobStream::release() {
  has_released_ = true;
  RemoveHold();
}

}  // namespace tutti::internal
