// Implements WorkerTeam.
// SPDX-License-Identifier: Apache-2.0
//
// Sums of gradients: a *node* is a largest subtree of the canonical tree whose replicas all belong
// to one worker. Each worker adds the gradients within its nodes. If every worker has one node and
// all nodes have the same size, one all_reduce of the workers' sums completes the canonical tree.
// Otherwise, or if values are sent in 16 bits, an all_to_all gives worker w slice w of all nodes'
// sums, which it adds along the tree, and an all_gather distributes the slices. If each worker
// needs only its part of the sum, a reduce_scatter replaces the all_reduce, and there is no
// all_gather. If the algorithm has no canonical order, each worker adds all of its gradients.
#include "strategy/multi_worker/worker_team.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <numeric>
#include <sstream>

#include "checkpoint/checkpoint_file.h"
#include "core/call_site.h"
#include "cross_device_ops/gpu_ranks.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {

namespace {

// Serialization of replicas' values.
//
// Format: number of replicas; per replica the number of values; per value its kind and, if it has
// one, a tensor: dtype, number of dimensions, dimensions, elements. A sparse value is two tensors
// and the dimensions of the dense value.

enum class Kind : std::uint8_t { kNone = 0, kDense = 1, kSlices = 2 };

class Writer {
 public:
  void number(std::int64_t value) { append(&value, sizeof value); }
  void shape(const Shape& shape) {
    number(shape.rank());
    for (const std::int64_t dim : shape) number(dim);
  }
  void tensor(const Tensor& tensor) {
    const Tensor on_host = tensor.to(Device{});
    number(static_cast<std::int64_t>(on_host.dtype()));
    shape(on_host.shape());
    append(on_host.bytes().data(), on_host.bytes().size());
  }
  void value(const Gradient& value) {
    if (value.is_none()) return number(static_cast<std::int64_t>(Kind::kNone));
    if (value.is_dense()) {
      number(static_cast<std::int64_t>(Kind::kDense));
      return tensor(value.dense());
    }
    number(static_cast<std::int64_t>(Kind::kSlices));
    const IndexedSlices slices = value.slices();
    tensor(slices.values);
    tensor(slices.indices);
    shape(slices.dense_shape);
  }
  std::string take() { return std::move(bytes_); }

 private:
  void append(const void* data, std::size_t size) {
    if (size > 0) bytes_.append(static_cast<const char*>(data), size);
  }

  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::int64_t number(std::int64_t limit) {
    std::int64_t value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    if (value < 0 || value > limit)
      fail_with(concat("the number ", value, " is not in 0 .. ", limit));
    return value;
  }
  /// Reads an item count. Rejects it if that many items of `bytes_each` bytes would exceed the
  /// remaining bytes.
  std::size_t count(std::size_t bytes_each) {
    return static_cast<std::size_t>(number(static_cast<std::int64_t>(rest_.size() / bytes_each)));
  }
  Shape shape() {
    std::array<std::int64_t, Shape::kMaxRank> dims{};
    const auto rank = static_cast<std::size_t>(number(Shape::kMaxRank));
    for (std::size_t axis = 0; axis < rank; ++axis) dims[axis] = number(std::int64_t{1} << 40);
    return Shape(std::span<const std::int64_t>(dims.data(), rank));
  }
  Tensor tensor() {
    const auto dtype =
        static_cast<DType>(number(static_cast<std::int64_t>(std::size(kAllDTypes)) - 1));
    const Shape dims = shape();
    std::size_t size = size_of(dtype);
    for (const std::int64_t dim : dims) {
      if (__builtin_mul_overflow(size, static_cast<std::size_t>(dim), &size)) {
        fail_with("more elements than fit into memory");
      }
    }
    const std::string_view bytes = take(size);
    return Tensor::from_bytes(dims, dtype, std::as_bytes(std::span(bytes)));
  }
  Gradient value() {
    switch (static_cast<Kind>(number(static_cast<std::int64_t>(Kind::kSlices)))) {
      case Kind::kNone:
        return {};
      case Kind::kDense:
        return tensor();
      case Kind::kSlices:
        break;
    }
    Tensor values = tensor();
    Tensor indices = tensor();
    return IndexedSlices{std::move(values), std::move(indices), shape()};
  }
  void end() const {
    if (!rest_.empty()) fail_with(concat(rest_.size(), " bytes too many"));
  }

 private:
  std::string_view take(std::size_t size) {
    if (size > rest_.size()) fail_with(concat(size, " bytes expected, ", rest_.size(), " left"));
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }
  [[noreturn]] void fail_with(const std::string& what) const {
    fail(ErrorCode::kDataLoss, "decode_values: the values of another worker's replicas: ", what,
         "; expected the output of encode_values(); use the same version of tutti on all workers");
  }

  std::string_view rest_;
};

}  // namespace

std::string encode_values(const ReplicaValues& values) {
  Writer writer;
  writer.number(static_cast<std::int64_t>(values.size()));
  for (const std::vector<Gradient>& replica : values) {
    writer.number(static_cast<std::int64_t>(replica.size()));
    for (const Gradient& value : replica) writer.value(value);
  }
  return writer.take();
}

ReplicaValues decode_values(std::string_view bytes) {
  Reader reader(bytes);
  ReplicaValues values(reader.count(sizeof(std::int64_t)));
  for (std::vector<Gradient>& replica : values) {
    const std::size_t count = reader.count(sizeof(std::int64_t));
    for (std::size_t i = 0; i < count; ++i) replica.push_back(reader.value());
  }
  reader.end();
  return values;
}

namespace {

/// Key under which a job stores the number of replicas of each worker.
constexpr const char* kReplicasKey = "workers/replicas";

std::vector<int> all_workers(int count) {
  std::vector<int> workers(static_cast<std::size_t>(count));
  std::iota(workers.begin(), workers.end(), 0);
  return workers;
}

Elements bytes_of(void* data, std::size_t size) {
  return {static_cast<std::byte*>(data), size, DType::kUInt8};
}

std::size_t to_size(int number) { return static_cast<std::size_t>(number); }

}  // namespace

WorkerTeam::WorkerTeam(std::unique_ptr<Communicator> communicator, WorkerGpus gpus,
                       const StragglerOptions& stragglers)
    : worker_(communicator->rank()),
      num_workers_(communicator->size()),
      gpus_(std::move(gpus)),
      num_local_replicas_(static_cast<int>(gpus_.devices.size())),
      stragglers_(stragglers) {
  begin(std::move(communicator));
}

WorkerTeam::WorkerTeam(std::shared_ptr<WorkerGroup> group, const CommunicatorOptions& options,
                       WorkerGpus gpus, const StragglerOptions& stragglers)
    : group_(std::move(group)),
      options_(options),
      worker_(group_->worker()),
      num_workers_(group_->num_workers()),
      gpus_(std::move(gpus)),
      num_local_replicas_(static_cast<int>(gpus_.devices.size())),
      algorithm_(options.algorithm),
      stragglers_(stragglers) {
  if (!group_->is_replacement()) {
    begin(group_->make_communicator(options_));
    return;
  }
  std::istringstream counts(group_->remembered(kReplicasKey));
  set_replicas({std::istream_iterator<std::int32_t>(counts), {}});
}

/// If an exception ends the strategy, reports it before the connections close. Without the report,
/// the other workers would name the closed connections as the cause.
WorkerTeam::~WorkerTeam() {
  if (!group_) return;
  group_->when_lost({});
  if (std::uncaught_exceptions() <= exceptions_at_begin_) return;
  ControlClient* const job = control();
  const bool is_cause = !job || !job->fatal_verdict();  // otherwise the fatal verdict is the cause
  if (job) job->report_unwinding();
  if (!is_cause) return;
  abort(Error(ErrorCode::kAborted,
              concat("worker ", worker_, ": ended by an exception; see its log")));
}

void WorkerTeam::begin(std::unique_ptr<Communicator> communicator) {
  stragglers_.restart();
  check_->clear();
  ++connection_;
  values_ = std::move(communicator);
  sums_ = values_->group(all_workers(num_workers_), {.name = "sums of gradients"});
  algorithm_ = sums_->name();
  is_canonical_ = sums_->determinism() == Determinism::kCanonical;
  std::vector<std::int32_t> counts(to_size(num_workers()));
  const auto own = static_cast<std::int32_t>(num_local_replicas_);
  values_->all_gather(ConstElements(std::span(&own, 1)), Elements(std::span(counts)), {},
                      {.name = "numbers of replicas"});
  set_replicas(counts);
  partial_sums_ = std::make_unique<PartialSums>(*sums_, counts, is_canonical_);
  if (group_) watches_ = {group_->watch(*values_, "values"), group_->watch(*sums_, "gradients")};
  if (group_) group_->remember(kReplicasKey, join(counts, " "));
  gpu_sums_ = connect_worker_gpus(*this, gpus_);
  if (!gpu_sums_) return;
  algorithm_ = gpu_sums_->name();
  is_canonical_ = gpu_sums_->determinism() == Determinism::kCanonical;
  partial_sums_ = std::make_unique<PartialSums>(*sums_, counts, is_canonical_);
  if (!group_) return;
  // On its own, NCCL may take a long time to detect that a worker was lost.
  group_->when_lost([gpus = std::weak_ptr<CrossDeviceOps>(gpu_sums_)](const Error& reason) {
    if (const auto sums = gpus.lock()) sums->abort(reason);
  });
}

void WorkerTeam::set_replicas(const std::vector<std::int32_t>& counts) {
  first_of_ = {0};
  for (const std::int32_t count : counts) first_of_.push_back(first_of_.back() + count);
}

bool WorkerTeam::may_reconnect(const Error& error, Duration patience) const {
  return group_ && group_->may_reconnect(error, patience);
}

void WorkerTeam::reconnect(TimePoint deadline) {
  if (!group_) {
    fail(ErrorCode::kFailedPrecondition,
         "WorkerTeam::reconnect: these workers were connected by the caller's communicator; "
         "expected a job with a control server; use a ClusterResolver");
  }
  watches_.clear();
  gpu_sums_.reset();
  partial_sums_.reset();
  sums_.reset();
  values_.reset();
  group_->reconnect(deadline);
  if (ControlClient* const job = control()) job->note_failure("");
  begin(group_->make_communicator(options_));
}

void WorkerTeam::require_connection() {
  if (sums_) return;
  if (!group_ || !may_restart_ || !group_->restart()) {
    fail(ErrorCode::kFailedPrecondition, "worker ", worker_,
         ": this process replaces one that died, and has not received the training state yet; "
         "expected Recovery::run() around the training loop");
  }
  begin(group_->make_communicator(options_));
}

Communicator& WorkerTeam::values() {
  require_connection();
  return *values_;
}

PartialSums& WorkerTeam::sums() {
  require_connection();
  return *partial_sums_;
}

std::vector<std::string> WorkerTeam::gather_texts(std::string_view own, std::string_view name) {
  const StragglerWatch::Waiting waiting(stragglers_);
  return internal::gather_texts(values(), own, name);
}

std::string WorkerTeam::broadcast_text(const std::string& own, int giver, std::string_view name) {
  const StragglerWatch::Waiting waiting(stragglers_);
  std::uint64_t size = own.size();
  values().broadcast(bytes_of(&size, sizeof size), giver, {.name = name}, CallSite::current());
  std::string text = worker() == giver ? own : std::string(size, '\0');
  values().broadcast(bytes_of(text.data(), text.size()), giver, {.name = name},
                     CallSite::current());
  return text;
}

std::unique_ptr<Communicator> WorkerTeam::make_group(const std::vector<int>& members,
                                                     std::string_view name) {
  const StragglerWatch::Waiting waiting(stragglers_);
  return values().group(members, {.name = name}, CallSite::current());
}

CollectiveHandle WorkerTeam::start_all_gather(const ConstElements& own, const Elements& all,
                                              std::span<const std::size_t> counts,
                                              std::string_view name) {
  return values().start_all_gather(own, all, counts, {.name = name}, CallSite::current());
}

ReplicaValues WorkerTeam::gather(const ReplicaValues& local, std::string_view name) {
  ReplicaValues all;
  const std::vector<std::string> encoded = gather_with_digest(encode_values(local), name);
  for (std::size_t w = 0; w < encoded.size(); ++w) {
    ReplicaValues values = decode_values(encoded[w]);
    const auto expected = to_size(first_of_[w + 1] - first_of_[w]);
    if (values.size() != expected) {
      fail(ErrorCode::kDataLoss, name, ": worker ", w, " sent the values of ", values.size(),
           " replicas; expected ", expected);
    }
    std::ranges::move(values, std::back_inserter(all));
  }
  return all;
}

std::vector<Tensor> WorkerTeam::gather_tensors(std::span<const Tensor> local,
                                               std::string_view name) {
  ReplicaValues values;
  for (const Tensor& value : local) values.push_back({value});
  std::vector<Tensor> all;
  for (std::vector<Gradient>& value : gather(values, name)) {
    all.push_back(value.at(0).dense());
  }
  return all;
}

/// Same as gather_texts(), but also exchanges digests of the notes, and compares the notes if the
/// digests differ.
std::vector<std::string> WorkerTeam::gather_with_digest(std::string own, std::string_view name) {
  const std::uint64_t digest = check_->digest();
  const std::string suffix(reinterpret_cast<const char*>(&digest), sizeof digest);
  std::vector<std::string> texts = gather_texts(own + suffix, name);
  const bool alike =
      std::ranges::all_of(texts, [&](const std::string& text) { return text.ends_with(suffix); });
  if (!alike || (num_workers_ == 1 && digest != 0)) compare_notes();
  if (digest != 0) check_->clear();
  for (std::string& text : texts) text.resize(text.size() - std::min(text.size(), suffix.size()));
  return texts;
}

void WorkerTeam::compare_notes() {
  const std::vector<std::string> notes = gather_texts(check_->notes().dump(), "notes of a worker");
  check_->clear();
  ConsistencyCheck::require_alike(notes);
}

void WorkerTeam::compare_digests() { (void)gather_with_digest("", "digest of a worker"); }

void WorkerTeam::note_waits(std::span<const double> waits) {
  const std::optional<Straggler> found = stragglers_.note(waits);
  if (!found || worker() != 0) return;  // all workers find the same straggler; worker 0 logs it
  const std::string name =
      group_ ? group_->name_of(found->worker) : concat("worker ", found->worker);
  log_warning(to_string(*found, name));
}

void WorkerTeam::set_step(std::uint64_t step) {
  if (group_) group_->set_step(step);
}

void WorkerTeam::abort(const Error& reason) noexcept {
  // If a connection is broken, the abort may not reach all workers, so the job is notified, too.
  if (ControlClient* const job = control()) job->note_failure(reason.message());
  if (values_) values_->abort(reason);
  if (sums_) sums_->abort(reason);
  if (gpu_sums_) gpu_sums_->abort(reason);
}

namespace {

// Connects the GPUs of all workers as one NCCL group.
//
// Decisions depend only on data that all workers have exchanged, so all workers make the same
// decisions.

constexpr const char* kWho = "multi_worker_mirrored";

bool is_gpu(const Device& device) { return device.type == DeviceType::kGpu; }

struct PeerGpus {
  int use = 0;
  bool any_gpu = false;
  std::string gpus;  // GpusOfRank::to_text()
};

std::string text_of(const WorkerGpus& own) {
  const bool asks = own.use != NcclUse::kNever;
  return concat(static_cast<int>(own.use), " ", std::ranges::any_of(own.devices, is_gpu) ? 1 : 0,
                "\n", (asks ? gpus_for_nccl(own.devices) : GpusOfRank()).to_text());
}

PeerGpus parse_gpus(const std::string& text) {
  PeerGpus told;
  std::istringstream(text) >> told.use >> told.any_gpu;
  told.gpus = text.substr(text.find('\n') + 1);
  return told;
}

std::unique_ptr<CrossDeviceOps> connect(WorkerTeam& team, const WorkerGpus& own) {
  try {
    return connect_by_nccl("worker",
                           Group{.world_size = team.num_replicas(),
                                 .first_rank = team.first_replica(),
                                 .local_devices = own.devices},
                           own.timeout, [&](std::string_view text, std::string_view name) {
                             return team.gather_texts(text, name);
                           });
  } catch (const Error& error) {
    throw Error(error.code(),
                concat(kWho, ": ", error.message(), "; use implementation CANONICAL"));
  }
}

}  // namespace

std::unique_ptr<CrossDeviceOps> connect_worker_gpus(WorkerTeam& team, const WorkerGpus& own) {
  std::vector<PeerGpus> workers;
  std::vector<GpusOfRank> gpus;
  for (const std::string& text : team.gather_texts(text_of(own), "who has GPUs")) {
    workers.push_back(parse_gpus(text));
    gpus.push_back(GpusOfRank::from_text(workers.back().gpus));
    if (workers.back().use == workers.front().use) continue;
    fail(ErrorCode::kInvalidArgument, kWho, ": worker ", workers.size() - 1,
         " selects a communication implementation (AUTO, NCCL or another) that differs from worker "
         "0's; expected the same on all workers");
  }
  if (own.use == NcclUse::kNever) return nullptr;
  const std::string reason = why_not_all("worker", gpus);
  if (own.use == NcclUse::kAlways && !reason.empty()) {
    fail(ErrorCode::kInvalidArgument, kWho, ": implementation NCCL: ", reason,
         "; expected a GPU of its own for each replica, and NCCL 2.18 or later, on every worker; "
         "use AUTO or CANONICAL");
  }
  const bool says = own.use == NcclUse::kIfAllCan && team.worker() == 0 && team.num_workers() > 1;
  if (says && !std::ranges::any_of(workers, &PeerGpus::any_gpu)) {
    log_info(concat("sums across workers: ", team.algorithm(), ", because no replica is on a GPU"));
  } else if (says) {
    log_info(concat("sums across workers: ", reason.empty() ? "nccl" : team.algorithm(),
                    ", because ", reason.empty() ? "each replica has a GPU of its own" : reason));
  }
  return reason.empty() ? connect(team, own) : nullptr;
}

namespace {

constexpr const char* kStateOfCommit = "state of a commit";
/// Tensors of up to this many bytes share one message, because each additional message costs a
/// round trip.
constexpr std::size_t kTogether = std::size_t{128} << 10;

bool is_sent_alone(std::size_t num_bytes) { return num_bytes > kTogether; }

Elements bytes_of(std::byte* data, std::size_t size) { return {data, size, DType::kUInt8}; }

Elements bytes_of(std::string& text) {
  return bytes_of(reinterpret_cast<std::byte*>(text.data()), text.size());
}

/// Sizes, in bytes, of the head and of the full snapshot.
using Sizes = std::array<std::uint64_t, 2>;

Elements bytes_of(Sizes& sizes) {
  return bytes_of(reinterpret_cast<std::byte*>(sizes.data()), sizeof sizes);
}

/// Copies the root's tensors into the corresponding tensors of the other ranks.
void broadcast_all(Communicator& group, int root, std::span<const Elements> tensors) {
  std::string together;
  for (const Elements& tensor : tensors) {
    if (is_sent_alone(tensor.num_bytes())) continue;
    together.append(reinterpret_cast<const char*>(tensor.data), tensor.num_bytes());
  }
  group.broadcast(bytes_of(together), root, {.name = kStateOfCommit});
  const char* next = together.data();
  for (const Elements& tensor : tensors) {
    if (is_sent_alone(tensor.num_bytes())) {
      group.broadcast(tensor, root, {.name = kStateOfCommit});
    } else if (tensor.num_bytes() > 0 && group.rank() != root) {
      std::memcpy(tensor.data, next, tensor.num_bytes());
      next += tensor.num_bytes();
    }
  }
}

/// Sends the root's snapshot to the other ranks. `own` is used on the root only.
std::optional<CheckpointSnapshot> share(Communicator& group, int root,
                                        const CheckpointSnapshot* own, const std::string& source,
                                        std::size_t& num_bytes) {
  SafetensorsLayout pieces;
  if (group.rank() == root) pieces = pieces_of(*own);
  Sizes sizes = {pieces.head.size(), pieces.num_bytes};
  group.broadcast(bytes_of(sizes), root, {.name = kStateOfCommit});
  pieces.head.resize(sizes[0]);
  group.broadcast(bytes_of(pieces.head), root, {.name = kStateOfCommit});
  num_bytes = sizes[1];
  std::vector<Elements> tensors;
  if (group.rank() == root) {
    for (const NamedTensor& tensor : pieces.tensors) {
      const auto bytes = tensor.value.bytes();
      // The const_cast is safe, because the root's memory is only read.
      tensors.push_back(bytes_of(const_cast<std::byte*>(bytes.data()), bytes.size()));
    }
    broadcast_all(group, root, tensors);
    return std::nullopt;
  }
  ArrivingSnapshot arriving(pieces.head, num_bytes, source);
  for (const MutableTensor& tensor : arriving.tensors()) {
    tensors.push_back(bytes_of(tensor.data(), tensor.num_bytes()));
  }
  broadcast_all(group, root, tensors);
  return arriving.finish();
}

void say_rate(int worker, int giver, std::size_t bytes, Duration duration) {
  const double mb = static_cast<double>(bytes) / 1e6;
  const double seconds = std::max(std::chrono::duration<double>(duration).count(), 1e-6);
  char text[96];
  std::snprintf(text, sizeof text, "%.1f MB in %.3f s, %.0f MB/s", mb, seconds, mb / seconds);
  log_info(concat("worker ", worker, ": received the state of worker ", giver, ": ", text));
}

}  // namespace

std::optional<CheckpointSnapshot> transfer_state(WorkerTeam& team, int giver,
                                                 const std::vector<int>& takers,
                                                 const CheckpointSnapshot* own) {
  if (takers.empty()) return std::nullopt;
  const TimePoint begin = Clock::system().now();
  std::vector<int> members = takers;
  members.insert(std::ranges::upper_bound(members, giver), giver);
  const bool is_member = std::ranges::count(members, team.worker()) > 0;
  const auto group = team.make_group(is_member ? members : std::vector<int>{}, kStateOfCommit);
  if (!is_member) return std::nullopt;
  const auto root = static_cast<int>(std::ranges::find(members, giver) - members.begin());
  std::size_t num_bytes = 0;
  auto taken = share(*group, root, own, concat("the state of worker ", giver), num_bytes);
  if (taken) say_rate(team.worker(), giver, num_bytes, Clock::system().now() - begin);
  return taken;
}

std::string describe_variable(const std::string& name, const Tensor& initial_value) {
  const Tensor on_host = initial_value.to(Device{});
  Hasher hasher;
  hasher.update(on_host.bytes());
  return concat("'", name, "' ", initial_value.dtype(), " ", initial_value.shape(), ", values ",
                hasher.hex_digest());
}

void require_same_variable(std::string_view who, WorkerTeam& team, const std::string& description) {
  const std::vector<std::string> all = team.gather_texts(description, "create a variable");
  for (std::size_t w = 1; w < all.size(); ++w) {
    if (all[w] == all[0]) continue;
    fail(ErrorCode::kInvalidArgument, who, ": the workers create different variables: worker 0 ",
         all[0], "; worker ", w, " ", all[w],
         "; expected the same variables in the same order with the same initial values; use the "
         "same program and seed on all workers");
  }
}

}  // namespace tutti::internal
