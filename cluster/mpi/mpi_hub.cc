// Frames: sending, probing, receiving, handing on.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/mpi/mpi_hub.h"

namespace tutti::internal {
namespace {

constexpr int kTag = 7;
constexpr Duration kLastWords = std::chrono::milliseconds(200);
constexpr int kFramesAtOnce = 32;

}  // namespace

std::shared_ptr<MpiHub> MpiHub::get() {
  static Mutex mutex;
  static std::shared_ptr<MpiHub> hub;
  MutexLock lock(mutex);
  MpiRuntime& runtime = MpiRuntime::get();
  if (!hub) hub = std::make_shared<MpiHub>(runtime);
  return hub;
}

MpiHub::MpiHub(MpiRuntime& runtime)
    : runtime_(runtime), arriving_(static_cast<std::size_t>(runtime.size())) {}

// At the end of the process: what MPI still reads must outlive its finalising.
MpiHub::~MpiHub() {
  try {
    if (runtime_.is_usable() && !outgoing_.empty()) {
      poll_until(deadline_after(Clock::system().now(), kLastWords),
                 [this] { return drive([this] { return outgoing_.empty(); }); });
    }
  } catch (const Error&) {
  }
  for (Outgoing& message : outgoing_) message.frame.leave_to_the_system();
}

void MpiHub::open(const Address& address, Receiver receiver) {
  Receiver& kept = open_[address] = std::move(receiver);
  const auto early = early_.extract(address);
  if (early.empty()) return;
  for (MpiFrame& frame : early.mapped()) kept(std::move(frame));
}

void MpiHub::close(const Address& address) {
  open_.erase(address);
  early_.erase(address);
  closed_.insert(address);
}

void MpiHub::post(int process, MpiFrame frame, std::function<void()> done) {
  runtime_.require_usable();
  Outgoing& message =
      outgoing_.emplace_back(Outgoing{MPI_REQUEST_NULL, std::move(frame), std::move(done)});
  const MpiRuntime::Calls guard(runtime_);
  check_mpi(MPI_Isend(message.frame.data(), static_cast<int>(message.frame.size()), MPI_BYTE,
                      process, kTag, runtime_.comm(), &message.request),
            "MPI_Isend");
}

bool MpiHub::drive(const std::function<bool()>& ended) {
  MutexLock lock(mutex_);
  if (ended()) return true;
  progress();
  return ended();
}

void MpiHub::progress() {
  runtime_.require_usable();
  for (int i = 0; i < kFramesAtOnce; ++i) {
    const bool sent = finish_sends();
    if (!find_frames() && !sent) break;
  }
}

bool MpiHub::has_ended(MPI_Request& request) {
  const MpiRuntime::Calls guard(runtime_);
  int flag = 0;
  check_mpi(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), "MPI_Test");
  return flag != 0;
}

bool MpiHub::finish_sends() {
  bool any = false;
  for (auto message = outgoing_.begin(); message != outgoing_.end();) {
    if (!has_ended(message->request)) {
      ++message;
      continue;
    }
    any = true;
    const std::function<void()> done = std::move(message->done);
    message = outgoing_.erase(message);
    if (done) done();  // may post more, at the end of the list
  }
  return any;
}

/// Takes one frame that has come; whether there was one, or one that was coming has come.
bool MpiHub::find_frames() {
  int flag = 0;
  {
    const MpiRuntime::Calls guard(runtime_);
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, kTag, runtime_.comm(), &flag, &message, &status),
              "MPI_Improbe");
    if (flag != 0) {
      int size = 0;
      check_mpi(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
      Arriving& frame = arriving_[static_cast<std::size_t>(status.MPI_SOURCE)].emplace_back(
          Arriving{MPI_REQUEST_NULL, MpiFrame(static_cast<std::size_t>(size))});
      check_mpi(MPI_Imrecv(frame.frame.data(), size, MPI_BYTE, &message, &frame.request),
                "MPI_Imrecv");
    }
  }
  bool any = flag != 0;
  for (auto& from_one : arriving_) {
    const std::size_t before = from_one.size();
    take_frames(from_one);
    any = any || from_one.size() != before;
  }
  return any;
}

/// In order: a long frame holds back the short ones behind it.
void MpiHub::take_frames(std::deque<Arriving>& from_one) {
  while (!from_one.empty() && has_ended(from_one.front().request)) {
    MpiFrame frame = std::move(from_one.front().frame);
    from_one.pop_front();
    dispatch(std::move(frame));
  }
}

void MpiHub::dispatch(MpiFrame frame) {
  if (!frame.is_whole()) {
    fail(ErrorCode::kDataLoss, "mpi: process ", runtime_.rank(), " got a frame of ", frame.size(),
         " bytes that is none of tutti's; expected all processes to run the same program");
  }
  const MpiFrame::Header header = frame.header();
  const Address address{header.channel, header.to};
  if (const auto found = open_.find(address); found != open_.end()) {
    const Receiver receiver = found->second;  // it may close its channel
    return receiver(std::move(frame));
  }
  if (!closed_.contains(address)) early_[address].push_back(std::move(frame));
}

}  // namespace tutti::internal
