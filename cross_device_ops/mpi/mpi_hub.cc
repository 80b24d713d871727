// Frames: sending, probing, receiving, handing on.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/mpi/mpi_hub.h"

namespace tutti::internal {
namespace {

constexpr int kTag = 7;
constexpr int kFramesAtOnce = 32;
constexpr int kRoundsAtOnce = 8;

/// Given up also when an exception ends the turn.
class DrivenScope {
 public:
  explicit DrivenScope(std::atomic<bool>& is_driven) : is_driven_(is_driven) {}
  ~DrivenScope() { is_driven_ = false; }
  DrivenScope(const DrivenScope&) = delete;
  DrivenScope& operator=(const DrivenScope&) = delete;

 private:
  std::atomic<bool>& is_driven_;
};

}  // namespace

std::shared_ptr<MpiHub> MpiHub::get() {
  MpiRuntime& runtime = MpiRuntime::get();  // made before the hub, so that it outlives it
  static Mutex mutex;
  static std::shared_ptr<MpiHub> hub;
  MutexLock lock(mutex);
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
  for (Transfer& message : outgoing_) message.frame.leave_to_the_system();
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
  Transfer& message =
      outgoing_.emplace_back(Transfer{MPI_REQUEST_NULL, std::move(frame), std::move(done)});
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

bool MpiHub::drive(const std::atomic<bool>& ended) {
  if (ended || is_driven_.exchange(true)) return ended;
  const DrivenScope scope(is_driven_);
  return drive([&] { return ended.load(); });
}

void MpiHub::progress() {
  runtime_.require_usable();
  for (int i = 0; i < kRoundsAtOnce; ++i) {
    bool moved = false;
    if (test_transfers()) {
      moved = end_sends();
      moved = take_received() || moved;
    }
    moved = find_frames() || moved;
    if (!moved) break;
  }
}

/// One call for all: each makes MPI look at everything.
bool MpiHub::test_transfers() {
  std::vector<Transfer*> transfers;
  for (Transfer& sent : outgoing_) transfers.push_back(&sent);
  for (auto& from_one : arriving_) {
    for (Transfer& received : from_one) transfers.push_back(&received);
  }
  std::vector<MPI_Request> requests;
  for (const Transfer* transfer : transfers) requests.push_back(transfer->request);
  if (requests.empty()) return false;
  std::vector<int> ended(requests.size());
  int num_ended = 0;
  const MpiRuntime::Calls guard(runtime_);
  check_mpi(MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &num_ended,
                         ended.data(), MPI_STATUSES_IGNORE),
            "MPI_Testsome");
  if (num_ended == MPI_UNDEFINED) return true;  // all had ended before
  for (int i = 0; i < num_ended; ++i) {
    transfers[static_cast<std::size_t>(ended[static_cast<std::size_t>(i)])]->request =
        MPI_REQUEST_NULL;
  }
  return num_ended > 0;
}

bool MpiHub::end_sends() {
  bool any = false;
  for (auto message = outgoing_.begin(); message != outgoing_.end();) {
    if (message->request != MPI_REQUEST_NULL) {
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

/// In order: a long frame holds back the short ones behind it.
bool MpiHub::take_received() {
  bool any = false;
  for (auto& from_one : arriving_) {
    while (!from_one.empty() && from_one.front().request == MPI_REQUEST_NULL) {
      MpiFrame frame = std::move(from_one.front().frame);
      from_one.pop_front();
      dispatch(std::move(frame));
      any = true;
    }
  }
  return any;
}

/// Begins to receive the frames that have come; whether there were any.
bool MpiHub::find_frames() {
  const MpiRuntime::Calls guard(runtime_);
  for (int num_found = 0; num_found < kFramesAtOnce; ++num_found) {
    int flag = 0, size = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, kTag, runtime_.comm(), &flag, &message, &status),
              "MPI_Improbe");
    if (flag == 0) return num_found > 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
    Transfer& transfer = arriving_[static_cast<std::size_t>(status.MPI_SOURCE)].emplace_back(
        Transfer{MPI_REQUEST_NULL, MpiFrame(static_cast<std::size_t>(size)), {}});
    check_mpi(MPI_Imrecv(transfer.frame.data(), size, MPI_BYTE, &message, &transfer.request),
              "MPI_Imrecv");
  }
  return true;
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
