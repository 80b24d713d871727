// Execution of calls in order: checks, conversion and alignment for the engine, headers and
// records.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/communicator/communicator_state.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/names.h"
#include "cross_device_ops/buffer_call.h"
#include "cross_device_ops/call_checks.h"
#include "tutti/core/logging.h"
#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti::internal {

namespace {

/// Returns the end of a path, long enough to distinguish files: its last two components, at most 39
/// characters.
std::string_view short_path(const char* file) {
  constexpr std::size_t kMost = 39;
  std::string_view path = file == nullptr ? "" : file;
  const std::size_t last = path.rfind('/');
  if (last != std::string_view::npos && last > 0) {
    const std::size_t before = path.rfind('/', last - 1);
    if (before != std::string_view::npos) path.remove_prefix(before + 1);
  }
  if (path.size() > kMost) path.remove_prefix(path.size() - kMost);
  return path;
}

}  // namespace

void CallRecorder::begin(const CollectiveHeader& header, const char* file, TimePoint now) {
  const std::uint64_t number = num_calls_.load(std::memory_order_relaxed);
  Entry& entry = entries_[number % entries_.size()];
  constexpr auto relaxed = std::memory_order_relaxed;
  entry.version.store(2 * number + 1, relaxed);
  // Words are stored with release order: a reader that sees one of them also sees the odd version
  // stored before it.
  constexpr auto release = std::memory_order_release;
  std::array<std::uint64_t, kWords> words;
  std::memcpy(words.data(), &header, sizeof(words));
  for (std::size_t w = 0; w < kWords; ++w) entry.words[w].store(words[w], release);
  entry.file.store(file, release);
  entry.begin.store(now.time_since_epoch().count(), release);
  entry.state.store(static_cast<int>(CallState::kWaiting), release);
  entry.version.store(2 * number + 2, release);
  num_calls_.store(number + 1, release);
}

void CallRecorder::end(CallState state) {
  Entry& entry = entries_[(num_calls_.load(std::memory_order_relaxed) - 1) % entries_.size()];
  entry.state.store(static_cast<int>(state), std::memory_order_release);
}

std::optional<RecordedCall> CallRecorder::read(std::uint64_t number) const {
  const Entry& entry = entries_[number % entries_.size()];
  constexpr auto acquire = std::memory_order_acquire;
  if (entry.version.load(acquire) != 2 * number + 2) return std::nullopt;
  RecordedCall call;
  call.state = static_cast<CallState>(entry.state.load(acquire));
  std::array<std::uint64_t, kWords> words;
  for (std::size_t w = 0; w < kWords; ++w) words[w] = entry.words[w].load(acquire);
  std::memcpy(static_cast<void*>(&call.header), words.data(), sizeof(words));
  std::ranges::copy(short_path(entry.file.load(acquire)), call.header.file.begin());
  call.begin = TimePoint(Duration(entry.begin.load(acquire)));
  if (entry.version.load(acquire) != 2 * number + 2) return std::nullopt;
  return call;
}

std::optional<RecordedCall> CallRecorder::last() const {
  for (;;) {
    const std::uint64_t end = num_calls_.load(std::memory_order_acquire);
    if (end == 0) return std::nullopt;
    if (auto call = read(end - 1)) return call;
  }
}

std::string RecordedCall::to_string(TimePoint now) const {
  const char* const what = state == CallState::kWaiting ? " waiting, begun "
                           : state == CallState::kDone  ? " done, begun "
                                                        : " failed, begun ";
  return concat(header.describe(), what, seconds_text(now - begin), " s ago");
}

StallWatch::StallWatch(CollectiveEngine& engine, const CallRecorder& recorder, Duration stall_after,
                       std::function<void()> poll)
    : engine_(engine), recorder_(recorder), stall_after_(stall_after), poll_(std::move(poll)) {
  thread_ = Executor::system().start(concat("stall-watch-", engine.rank()), [this] { watch(); });
}

StallWatch::~StallWatch() {
  stop_.set();
  thread_->join();
}

std::string StallWatch::state_of(const CallRecorder& recorder) {
  const std::optional<RecordedCall> last = recorder.last();
  if (!last) return "is in no collective and was in none before";
  const TimePoint now = Clock::system().now();
  if (last->state != CallState::kWaiting) {
    return concat("is in no collective; its last one was ", last->to_string(now));
  }
  return concat("has waited ", seconds_text(now - last->begin), " s in ", last->header.describe());
}

std::string StallWatch::states_of_others(CollectiveEngine& engine) {
  const TimePoint end = deadline_after(Clock::system().now(), std::chrono::seconds(1));
  const std::vector<std::string> states = engine.states_of_ranks(end);
  std::string text;
  for (std::size_t r = 0; r < states.size(); ++r) {
    if (static_cast<int>(r) == engine.rank()) continue;
    text += concat(text.empty() ? "" : "; ", "rank ", r, " ", states[r]);
  }
  return text;
}

void StallWatch::watch() {
  const Duration tick = std::clamp<Duration>(stall_after_ / 4, std::chrono::milliseconds(10),
                                             std::chrono::milliseconds(100));
  do {
    engine_.answer_state_queries([this] { return state_of(recorder_); });
    poll_();
    check_stall();
  } while (!stop_.wait_until(deadline_after(Clock::system().now(), tick)));
}

void StallWatch::check_stall() {
  const std::optional<RecordedCall> last = recorder_.last();
  if (!last || last->state != CallState::kWaiting || reported_ == last->header.sequence) return;
  if (Clock::system().now() - last->begin < stall_after_) return;
  reported_ = last->header.sequence;
  log_warning(concat("stalled: rank ", engine_.rank(), " ", state_of(recorder_), "; ",
                     states_of_others(engine_)));
}

namespace {

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  // FNV-1a over words, which suffices because the input, names and counts, is short.
  std::uint64_t hash = 0xcbf29ce484222325u;
  while (!bytes.empty()) {
    std::uint64_t word = 0;
    const std::size_t n = std::min<std::size_t>(8, bytes.size());
    std::memcpy(&word, bytes.data(), n);
    hash = (hash ^ word) * 0x100000001b3u;
    hash ^= hash >> 29;
    bytes = bytes.subspan(n);
  }
  return hash | 1;  // never 0, because 0 means no counts or no name
}

std::uint64_t hash_of_list(std::span<const ConstElements> list) {
  std::uint64_t hash = list.size();
  for (const ConstElements& elements : list) hash = (hash ^ elements.count) * 0x9E3779B97F4A7C15u;
  return hash | 1;
}

bool are_even(std::span<const std::size_t> counts) {
  return std::ranges::adjacent_find(counts, std::ranges::not_equal_to()) == counts.end();
}

std::uint64_t count_of(const CallRequest& request) {
  if (request.collective == Collective::kAllToAll) return 0;  // counts differ between ranks
  if (request.collective != Collective::kAllGather) return request.count;
  return std::accumulate(request.counts.begin(), request.counts.end(), std::uint64_t{0});
}

void copy_alone(const CallRequest& request) {
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    const ConstElements& from = request.inputs[i];
    std::byte* const to = request.outputs[i].data;
    if (from.count > 0 && from.data != to) std::memmove(to, from.data, from.num_bytes());
  }
}

template <class AnyElements>
bool are_aligned(std::span<const AnyElements> list, DType dtype) {
  const std::uintptr_t low_bits = size_of(dtype) - 1;  // sizes are powers of two
  return std::ranges::none_of(list, [&](const AnyElements& elements) {
    return (reinterpret_cast<std::uintptr_t>(elements.data) & low_bits) != 0;
  });
}

/// A checked request in the form that the engine accepts. Costs nothing if the engine can work on
/// the caller's memory. Otherwise the elements are copied into one aligned buffer for the call.
/// 16-bit numbers are converted to floats for MEAN, or if the engine cannot combine them; lists are
/// concatenated if it does not accept them.
class PreparedCall {
 public:
  PreparedCall(const CallRequest& request, const CollectiveEngine& engine)
      : request_(request), engine_(engine), call_(request) {
    if (!combines(request.collective)) return;
    if (request.op == ReduceOp::kMean) call_.op = ReduceOp::kSum;
    const bool widens =
        is_half(call_.dtype) && (request.op == ReduceOp::kMean ||
                                 !engine.supports(call_.collective, call_.op, call_.dtype));
    const bool is_list = request.outputs.size() > 1 && !engine.takes_lists();
    const bool aligned =
        are_aligned(request.inputs, call_.dtype) &&
        (!request_.has_result(engine_.rank()) || are_aligned(request.outputs, call_.dtype));
    if (widens || is_list || !aligned) copy_as(widens ? DType::kFloat32 : call_.dtype);
  }
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;

  const CollectiveCall& call() const { return call_; }
  /// Divides for MEAN and copies results into the caller's memory. Called after the engine has run.
  void finish() {
    if (copy_ || request_.op == ReduceOp::kMean) finish_results();
  }

 private:
  void copy_as(DType dtype) {
    const bool in_place = request_.collective != Collective::kReduceScatter;
    const std::size_t num_results = in_place ? call_.count : request_.outputs.front().count;
    const std::size_t num_elements = call_.count + (in_place ? 0 : num_results);
    copy_ = BufferRef::allocate(num_elements * size_of(dtype));
    std::byte* place = copy_->data();
    for (const ConstElements& from : request_.inputs) {
      const Elements to(place, from.count, dtype);
      convert(buffer_of(from), buffer_of(to));
      place += to.num_bytes();
    }
    input_ = {copy_->data(), call_.count, dtype};
    output_ = {in_place ? copy_->data() : place, num_results, dtype};
    call_.dtype = dtype;
    call_.inputs = {&input_, 1};
    call_.outputs = {&output_, 1};
  }
  void finish_results() {
    if (!combines(request_.collective) || !request_.has_result(engine_.rank())) return;
    std::size_t offset = 0;  // offset of the result in the copy, in bytes
    for (const Elements& output : request_.outputs) {
      Elements result = output;
      if (copy_) result = {output_.data + offset, output.count, output_.dtype};
      if (request_.op == ReduceOp::kMean) {
        divide(buffer_of(result), static_cast<std::size_t>(engine_.size()));
      }
      if (copy_) convert(buffer_of(result), buffer_of(output));
      offset += result.num_bytes();
    }
  }

  const CallRequest& request_;
  const CollectiveEngine& engine_;
  CollectiveCall call_;
  BufferRef copy_;  // concatenated inputs; for reduce_scatter also the output
  ConstElements input_;
  Elements output_;
};

CollectiveCall meeting() {
  CollectiveCall call;
  call.collective = Collective::kBarrier;
  return call;
}

}  // namespace

CommunicatorState::CommunicatorState(std::unique_ptr<CollectiveEngine> engine,
                                     const CommunicatorOptions& options)
    : options_(options), engine_(std::move(engine)), size_(engine_->size()), gpu_(*this) {
  header_.rank = engine_->rank();
  require(options.timeout > Duration::zero() && options.stall_after > Duration::zero(),
          "Communicator: expected a timeout and stall_after above 0, got ", options.timeout.count(),
          " and ", options.stall_after.count(), " ns");
  if (size_ == 1) return;
  watch_ = std::make_unique<StallWatch>(*engine_, recorder_, options.stall_after,
                                        [this] { gpu_.poll(); });
}

CommunicatorState::~CommunicatorState() {
  if (!thread_) return;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_->join();
}

CallRequest CommunicatorState::completed(const CollectiveCall& call, const CallOptions& options,
                                         const SourceLocation& where) {
  CallRequest request{call, options, where};
  request.id = options.id;
  if (!call.inputs.empty()) {
    request.dtype = call.inputs.front().dtype;
    for (const ConstElements& input : call.inputs) request.count += input.count;
  } else if (!call.outputs.empty()) {  // broadcast
    request.dtype = call.outputs.front().dtype;
    request.count = call.outputs.front().count;
  }
  const auto complete = [&](std::span<const std::size_t>& counts, std::size_t total, int slot) {
    if (!counts.empty()) return;
    const auto n = static_cast<std::size_t>(size_);
    even_counts_[slot].assign(n, total / n);
    counts = even_counts_[slot];
  };
  const bool gathers = call.collective == Collective::kAllGather;
  const bool exchanges = call.collective == Collective::kAllToAll;
  if (gathers) complete(request.counts, call.outputs.front().count, 0);
  if (exchanges || call.collective == Collective::kReduceScatter) {
    complete(request.counts, call.inputs.front().count, 0);
  }
  if (exchanges) complete(request.receive_counts, call.outputs.front().count, 1);
  return request;
}

std::span<const ConstElements> CommunicatorState::as_inputs(std::span<const Elements> list) {
  list_inputs_.assign(list.begin(), list.end());
  return list_inputs_;
}

template <class Check>
auto CommunicatorState::checked(const CallRequest& request, const Check& check) {
  try {
    return check();
  } catch (const Error& error) {
    refuse(request, error.with_context(request.context(header_.rank)));
  }
}

void CommunicatorState::check(const CallRequest& request) {
  checked(request, [&] {
    check_call(request, static_cast<std::size_t>(header_.rank), static_cast<std::size_t>(size_));
  });
}

void CommunicatorState::run(const CollectiveCall& call, const CallOptions& options,
                            const SourceLocation& where) {
  const CallRequest request = completed(call, options, where);
  if (last_started_ && !last_started_->ended.is_set()) return start(request).wait();
  check(request);
  if (!options.gpu) return execute(request, nullptr);
  const GpuCalls::Begun begun = checked(request, [&] { return gpu_.begin(request); });
  execute(request, begun.event.get());
}

void CommunicatorState::refuse(const CallRequest& request, const Error& reason) {
  if (size_ == 1) throw Error(reason);
  if (last_started_) last_started_->ended.wait_until(TimePoint::max());
  fill_header(request);
  header_.count = request.count;
  if (request.inputs.size() <= 1) header_.counts_hash = 0;
  const std::string beginning = request.context(header_.rank) + ": ";
  const std::string& text = reason.message();
  header_.refuse(text.starts_with(beginning) ? text.substr(beginning.size()) : text);
  try {
    const Duration timeout = request.options.timeout.value_or(options_.timeout);
    // A short timeout suffices, because a rank that calls later finds that the group has ended.
    recorded(request, meeting(), std::min<Duration>(timeout, durations::kLinger));
  } catch (const Error&) {  // `reason` is thrown below instead
  }
  name_size_ = 0;  // refuse() stored the reason in the name
  header_.name.fill('\0');
  header_.name_hash = 0;
  throw Error(reason);
}

CollectiveHandle CommunicatorState::start(const CollectiveCall& call, const CallOptions& options,
                                          const SourceLocation& where) {
  return start(completed(call, options, where));
}

CollectiveHandle CommunicatorState::start(const CallRequest& request) {
  check(request);
  auto call = std::make_shared<PendingCall>(request);
  if (request.options.gpu) {
    call->begin = checked(request, [&] { return gpu_.begin(request); }).event;
  }
  MutexLock lock(mutex_);
  if (!thread_) {
    thread_ = Executor::system().start(concat("collectives-", engine_->rank()),
                                       [this] { run_started_calls(); });
  }
  started_.push_back(call);
  last_started_ = call;
  changed_.notify_all();
  return CollectiveHandle(call);
}

void CommunicatorState::run_started_calls() {
  for (;;) {
    std::shared_ptr<PendingCall> call;
    {
      MutexLock lock(mutex_);
      changed_.wait_until(mutex_, TimePoint::max(), [this]() TUTTI_REQUIRES(mutex_) {
        return stopping_ || !started_.empty();
      });
      if (started_.empty()) return;
      call = started_.front();
      started_.pop_front();
    }
    try {
      execute(call->request, call->begin.get());
    } catch (...) {
      call->error = std::current_exception();
    }
    call->ended.set();
  }
}

void CommunicatorState::fill_text(const CallRequest& request) {
  const std::string_view name = request.options.name.substr(0, header_.name.size() - 1);
  const std::string_view last(header_.name.data(), name_size_);
  if (name != last || name.size() < request.options.name.size()) {
    header_.name.fill('\0');
    std::ranges::copy(name, header_.name.begin());
    name_size_ = name.size();
    header_.name_hash = name.empty() ? 0 : hash_of(std::as_bytes(std::span(request.options.name)));
  }
  if (request.where.file_name() != header_file_) {
    header_file_ = request.where.file_name();
    header_.file.fill('\0');
    std::ranges::copy(short_path(header_file_), header_.file.begin());
  }
  header_.line = request.where.line() & 0x7fffffffu;
  header_.on_gpu = request.options.gpu ? 1 : 0;
  header_.shape_hash = 0;
  if (header_.shape[0] != '\0') header_.shape.fill('\0');
  if (request.options.shape != nullptr) {
    const std::string text = request.options.shape->to_string();
    header_.shape_hash = hash_of(std::as_bytes(std::span(text)));
    std::ranges::copy(text.substr(0, header_.shape.size() - 1), header_.shape.begin());
  }
}

void CommunicatorState::fill_header(const CallRequest& request) {
  header_.collective = request.collective;
  header_.op = request.op;
  header_.dtype = request.dtype;
  header_.root = request.root;
  header_.count = count_of(request);
  const bool uneven = request.collective != Collective::kAllToAll && !are_even(request.counts);
  header_.counts_hash = uneven                      ? hash_of(std::as_bytes(request.counts))
                        : request.inputs.size() > 1 ? hash_of_list(request.inputs)
                                                    : 0;
  header_.refused = 0;
  fill_text(request);
}

void CommunicatorState::execute(const CallRequest& request, const DeviceEvent* begin) {
  if (begin != nullptr) return gpu_.execute(request, *begin);
  if (size_ == 1) return copy_alone(request);
  execute_on_host(request);
}

void CommunicatorState::execute_on_host(const CallRequest& request) {
  PreparedCall prepared(request, *engine_);
  located(request, prepared.call());
  prepared.finish();
}

void CommunicatorState::compare_requests(const CallRequest& request) {
  located(request, meeting());
}

void CommunicatorState::located(const CallRequest& request, const CollectiveCall& call) {
  fill_header(request);
  try {
    recorded(request, call, request.options.timeout.value_or(options_.timeout));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kDeadlineExceeded) {
      throw Error(error.code(),
                  concat(error.message(), "; ", StallWatch::states_of_others(*engine_)));
    }
    const auto call = recorder_.last();  // header_ already has the number of the next call
    if (error.code() != ErrorCode::kUnavailable || !call) throw;
    throw Error(error.code(), concat(error.message(), "; rank ", header_.rank, " was in ",
                                     call->header.describe()));
  }
  header_.remember_name();
}

void CommunicatorState::recorded(const CallRequest& request, const CollectiveCall& call,
                                 Duration timeout) {
  const TimePoint now = coarse_now();
  recorder_.begin(header_, request.where.file_name(), now);
  // Add 4 ms, because the coarse clock may lag by a few milliseconds.
  const TimePoint deadline = deadline_after(now + std::chrono::milliseconds(4), timeout);
  try {
    engine_->run(call, header_, deadline);
  } catch (const Error&) {
    recorder_.end(CallState::kFailed);
    ++header_.sequence;
    throw;
  }
  recorder_.end(CallState::kDone);
  ++header_.sequence;
}

}  // namespace tutti::internal
