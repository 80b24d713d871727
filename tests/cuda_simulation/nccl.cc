// Simulates NCCL on simulated GPUs, and reports misuse that makes the real library hang.
// SPDX-License-Identifier: Apache-2.0
//
// A *clique* contains all ranks of one unique id. A *launch* contains all calls of one rank within
// a group. The n-th launches of all ranks belong together: once all of them have arrived, they
// become one JointWork of all their streams. Until then, the communicators are in progress.
//
// TUTTI_NCCL_LIBRARY must name the library that contains this simulation. TUTTI_SIMULATED_NCCL is
// read at each call and lists faults: "version:21700" (the result of ncclGetVersion),
// "init_never:1" and "launch_never:1" (communicators stay in progress), "async_error:3" (the
// process's third launch since the last call to tutti_simulated_nccl_notes() ends with
// ncclRemoteError), "peer_never:1" (launches succeed, but their work in the streams waits for a
// peer until ncclCommAbort()), "async_later:40" (from the 40th ncclCommGetAsyncError() since the
// last call to tutti_simulated_nccl_notes(), communicators have ncclRemoteError).
//
// Misuse that makes the real library hang or corrupts data is an error here: a GPU twice in a
// clique, mismatched counts, types or roots, calls outside a group that wait for the same thread, a
// stream of another GPU, host memory, use after abort, use while in progress.
#pragma GCC visibility push(default)  // the module's functions are looked up by name
#include <nccl.h>
/// Returns the NCCL calls made since this function was last called, one per line. Lines about
/// misuse begin with "!".
extern "C" const char* tutti_simulated_nccl_notes();
#pragma GCC visibility pop

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_simulation/state.h"
#include "tutti/tensor/dtype.h"

using namespace tutti::cuda_simulation;  // NOLINT: definitions of another library's symbols
using tutti::MutexLock;

namespace tutti::cuda_simulation {
namespace {

enum class NcclKind {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kSend,
  kReceive
};

/// Call of one rank. `root` is the root of a collective that has one, or the peer of a send or
/// receive.
struct NcclCall {
  NcclKind kind = NcclKind::kAllReduce;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int root = -1;

  const char* name() const {
    constexpr const char* kNames[] = {"all_reduce",     "reduce", "broadcast", "all_gather",
                                      "reduce_scatter", "send",   "receive"};
    return kNames[static_cast<std::size_t>(kind)];
  }
  bool is_collective() const { return kind != NcclKind::kSend && kind != NcclKind::kReceive; }
  /// Returns true if the call reads the input of rank `rank`.
  bool reads(int rank) const {
    return kind != NcclKind::kReceive && (kind != NcclKind::kBroadcast || rank == root);
  }
  bool writes(int rank) const {
    return kind != NcclKind::kSend && (kind != NcclKind::kReduce || rank == root);
  }
};

/// Calls that one rank makes within a group.
struct NcclLaunch {
  int rank = 0;
  cudaStream_t stream = nullptr;
  std::vector<NcclCall> calls;
};

struct Clique {
  int size = 0;
  std::vector<ncclComm*> ranks;
  std::vector<std::deque<NcclLaunch>> launches;   // waiting launches of each rank
  std::vector<std::shared_ptr<JointWork>> stuck;  // work that waits in streams for a peer
};

}  // namespace
}  // namespace tutti::cuda_simulation

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int gpu = 0;
  const void* thread = nullptr;  // identifies the thread that created the communicator
  ncclResult_t state = ncclInProgress;
  enum { kAlive, kFinalized, kDestroyed, kAborted } life = kAlive;
};

namespace tutti::cuda_simulation {
namespace {

using Bytes = std::vector<std::byte>;

DType dtype_of_nccl(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32:
      return DType::kFloat32;
    case ncclFloat64:
      return DType::kFloat64;
    case ncclInt32:
      return DType::kInt32;
    case ncclInt64:
      return DType::kInt64;
    case ncclUint8:
      return DType::kUInt8;
    case ncclBfloat16:
      return DType::kBFloat16;
    case ncclFloat16:
      return DType::kFloat16;
    default:
      fail(ErrorCode::kInternal, "simulated NCCL: unsupported ncclDataType_t ",
           static_cast<int>(type));
  }
}

std::size_t bytes_of(const NcclCall& call, std::size_t count) {
  return count * size_of(dtype_of_nccl(call.type));
}

template <class T>
T combined(ncclRedOp_t op, T a, T b) {
  if constexpr (Half<T>) {
    return T(combined<float>(op, static_cast<float>(a), static_cast<float>(b)));
  } else if constexpr (std::is_floating_point_v<T>) {
    if (op == ncclMin) return std::fmin(a, b);
    if (op == ncclMax) return std::fmax(a, b);
    return op == ncclSum ? a + b : a * b;
  } else if constexpr (std::is_same_v<T, bool>) {
    return a || b;
  } else {
    if (op == ncclMin) return a < b ? a : b;
    if (op == ncclMax) return a < b ? b : a;
    using Wrapping = std::make_unsigned_t<T>;
    const auto x = static_cast<Wrapping>(a), y = static_cast<Wrapping>(b);
    return static_cast<T>(op == ncclSum ? x + y : x * y);
  }
}

Bytes read(const NcclCall& call, std::size_t count) {
  Bytes bytes(bytes_of(call, count));
  if (!bytes.empty()) std::memcpy(bytes.data(), call.send, bytes.size());
  return bytes;
}

void write(const NcclCall& call, const Bytes& bytes, std::size_t first, std::size_t size) {
  if (size > 0) std::memcpy(call.receive, bytes.data() + first, size);
}

Bytes sum_of(const std::vector<const NcclCall*>& calls, std::size_t count) {
  Bytes sum = read(*calls[0], count);
  for (std::size_t r = 1; r < calls.size(); ++r) {
    const Bytes next = read(*calls[r], count);
    visit_dtype(dtype_of_nccl(calls[0]->type), [&]<class T>() {
      for (std::size_t i = 0; i < count; ++i) {
        T a, b;
        std::memcpy(&a, sum.data() + i * sizeof(T), sizeof(T));
        std::memcpy(&b, next.data() + i * sizeof(T), sizeof(T));
        const T c = combined<T>(calls[0]->op, a, b);
        std::memcpy(sum.data() + i * sizeof(T), &c, sizeof(T));
      }
    });
  }
  return sum;
}

void carry_out_collective(const std::vector<const NcclCall*>& calls) {
  const NcclCall& first = *calls[0];
  const std::size_t n = calls.size(), part = bytes_of(first, first.count);
  Bytes result;
  switch (first.kind) {
    case NcclKind::kAllReduce:
    case NcclKind::kReduce:
      result = sum_of(calls, first.count);
      break;
    case NcclKind::kReduceScatter:
      result = sum_of(calls, first.count * n);
      break;
    case NcclKind::kBroadcast:
      result = read(*calls[static_cast<std::size_t>(first.root)], first.count);
      break;
    default:
      for (const NcclCall* call : calls) {
        const Bytes bytes = read(*call, first.count);
        result.insert(result.end(), bytes.begin(), bytes.end());
      }
  }
  const bool scatters = first.kind == NcclKind::kReduceScatter;
  for (std::size_t r = 0; r < n; ++r) {
    if (!calls[r]->writes(static_cast<int>(r))) continue;
    write(*calls[r], result, scatters ? r * part : 0, scatters ? part : result.size());
  }
}

/// Describes how the ranks' launches contradict each other; returns "" if they match. For
/// collectives, `ranks` must contain all ranks.
std::string find_mismatch(const std::vector<NcclLaunch>& ranks) {
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::size_t>> sent, received;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto rank = static_cast<std::size_t>(ranks[r].rank);
    for (const NcclCall& call : ranks[r].calls) {
      const auto peer = static_cast<std::size_t>(call.root);
      if (call.kind == NcclKind::kSend) sent[{rank, peer}].push_back(bytes_of(call, call.count));
      if (call.kind == NcclKind::kReceive) {
        received[{peer, rank}].push_back(bytes_of(call, call.count));
      }
    }
    if (ranks[r].calls.size() != ranks[0].calls.size() && ranks[0].calls[0].is_collective()) {
      return concat("mismatch: rank 0 calls ", ranks[0].calls.size(), " collectives, rank ", r,
                    " calls ", ranks[r].calls.size());
    }
    for (std::size_t i = 0; i < ranks[r].calls.size() && ranks[0].calls[0].is_collective(); ++i) {
      const NcclCall &own = ranks[r].calls[i], &first = ranks[0].calls[i];
      if (own.kind == first.kind && own.count == first.count && own.type == first.type &&
          own.op == first.op && own.root == first.root) {
        continue;
      }
      return concat("mismatch: rank 0 calls ", first.name(), " of ", first.count, ", rank ", r,
                    " calls ", own.name(), " of ", own.count);
    }
  }
  return sent == received ? std::string() : "mismatch: sends and receives differ";
}

/// Reads and writes the memory of all ranks. Accumulates sums in rank order and rounds after each
/// addition.
void carry_out(const std::vector<NcclLaunch>& ranks) {
  if (!ranks[0].calls.empty() && ranks[0].calls[0].is_collective()) {
    for (std::size_t i = 0; i < ranks[0].calls.size(); ++i) {
      std::vector<const NcclCall*> calls;
      for (const NcclLaunch& rank : ranks) calls.push_back(&rank.calls[i]);
      carry_out_collective(calls);
    }
    return;
  }
  std::map<std::pair<std::size_t, std::size_t>, std::vector<Bytes>> messages;
  for (const NcclLaunch& launch : ranks) {
    const auto rank = static_cast<std::size_t>(launch.rank);
    for (const NcclCall& call : launch.calls) {
      if (call.kind != NcclKind::kSend) continue;
      messages[{rank, static_cast<std::size_t>(call.root)}].push_back(read(call, call.count));
    }
  }
  for (const NcclLaunch& launch : ranks) {
    const auto rank = static_cast<std::size_t>(launch.rank);
    std::map<std::size_t, std::size_t> next;
    for (const NcclCall& call : launch.calls) {
      if (call.kind != NcclKind::kReceive) continue;
      const auto peer = static_cast<std::size_t>(call.root);
      const Bytes& message = messages[{peer, rank}][next[peer]++];
      write(call, message, 0, message.size());
    }
  }
}

struct Init {
  ncclComm* comm;
  std::string id;
  int size;
};

/// Calls that this thread has made since ncclGroupStart().
struct OpenGroup {
  int depth = 0;
  std::vector<Init> inits;
  std::vector<std::pair<ncclComm*, NcclLaunch>> launches;
  ncclResult_t failure = ncclSuccess;
};
thread_local OpenGroup open_group;

struct Everything {
  Mutex mutex;
  std::map<std::string, std::shared_ptr<Clique>> cliques;
  std::vector<std::unique_ptr<ncclComm>> comms;  // never destroyed, so that later use is detected
  std::string last_error;
  std::string notes;
  std::int64_t num_ids = 0, num_launches = 0, num_questions = 0;
};

Everything& everything() {
  static Everything all;
  return all;
}

/// Returns the number after "name:" in TUTTI_SIMULATED_NCCL, or 0 if it is missing.
std::int64_t setting(const std::string& name) {
  const char* const value = std::getenv("TUTTI_SIMULATED_NCCL");
  const std::string text = std::string(",") + (value ? value : "");
  const std::size_t place = text.find("," + name + ":");
  return place == std::string::npos ? 0 : std::atoll(text.c_str() + place + name.size() + 2);
}

ncclResult_t refuse(ncclResult_t result, std::string why) {
  everything().last_error = why;
  everything().notes += concat("! ", why, "\n");
  return result;
}

ncclResult_t check_alive(const ncclComm* comm) {
  if (!comm) return refuse(ncclInvalidArgument, "the communicator is NULL");
  if (comm->life == ncclComm::kAborted) {
    return refuse(ncclInvalidArgument, "a communicator was used after ncclCommAbort()");
  }
  if (comm->life == ncclComm::kDestroyed) {
    return refuse(ncclInvalidArgument, "a communicator was used after ncclCommDestroy()");
  }
  return ncclSuccess;
}

ncclResult_t check_buffer(const NcclCall& call, const void* data, const char* what) {
  if (call.count == 0 || is_device_memory(data)) return ncclSuccess;
  return refuse(ncclInvalidArgument, concat(call.name(), ": the ", what, " is not in GPU memory"));
}

ncclResult_t check_stream(const ncclComm* comm, const NcclCall& call, cudaStream_t stream) {
  const Locked world;
  const std::shared_ptr<Queue> queue = world->queue_of(stream);
  if (queue && queue->gpu == comm->gpu) return ncclSuccess;
  return refuse(ncclInvalidUsage,
                concat(call.name(), ": the stream does not belong to GPU ", comm->gpu));
}

ncclResult_t check_call(const ncclComm* comm, const NcclCall& call, cudaStream_t stream) {
  if (const ncclResult_t dead = check_alive(comm); dead != ncclSuccess) return dead;
  if (comm->state == ncclInProgress) {
    return refuse(ncclInvalidUsage, concat(call.name(), ": the communicator is in progress"));
  }
  if (comm->state != ncclSuccess) return comm->state;
  if (call.reads(comm->rank)) {
    if (const auto bad = check_buffer(call, call.send, "input"); bad != ncclSuccess) return bad;
  }
  if (call.writes(comm->rank)) {
    if (const auto bad = check_buffer(call, call.receive, "output"); bad != ncclSuccess) return bad;
  }
  return check_stream(comm, call, stream);
}

/// Refuses a call outside a group if it would wait for later calls by the same thread.
ncclResult_t check_alone(const ncclComm* comm, const NcclCall& call) {
  for (const ncclComm* other : comm->clique->ranks) {
    if (other == comm || other->thread != comm->thread) continue;
    return refuse(ncclInvalidUsage, concat(call.name(), " of rank ", comm->rank,
                                           " outside a group would wait for rank ", other->rank,
                                           ", which the same thread would call later"));
  }
  return ncclSuccess;
}

void fail_clique(Clique& clique, ncclResult_t result) {
  for (ncclComm* comm : clique.ranks) {
    if (comm) comm->state = result;
  }
}

void run_if_complete(Clique& clique) {
  std::vector<NcclLaunch> together;
  std::vector<cudaStream_t> streams;
  bool exchanges = true;  // all calls are sends or receives, which do not wait for idle ranks
  for (const auto& launches : clique.launches) {
    if (launches.empty()) continue;
    together.push_back(launches.front());
    streams.push_back(together.back().stream);
    exchanges = exchanges && !together.back().calls.front().is_collective();
  }
  const bool complete = together.size() == clique.launches.size();
  if (!complete && !exchanges) return;
  const std::string mismatch = find_mismatch(together);
  if (!mismatch.empty() && !complete) return;
  if (!mismatch.empty()) return fail_clique(clique, refuse(ncclInvalidUsage, mismatch));
  for (const NcclLaunch& launch : together) {
    const auto rank = static_cast<std::size_t>(launch.rank);
    clique.launches[rank].pop_front();
    clique.ranks[rank]->state = ncclSuccess;
  }
  if (setting("peer_never") == 0) {
    enqueue_joint(streams, [together = std::move(together)] { carry_out(together); });
    return;
  }
  clique.stuck.push_back(make_joint_work(static_cast<int>(streams.size()) + 1, [] {}));
  for (const cudaStream_t stream : streams) enqueue_part(stream, clique.stuck.back());
}

ncclResult_t end_init(const Init& init) {
  std::shared_ptr<Clique>& clique = everything().cliques[init.id];
  if (!clique) clique = std::make_shared<Clique>();
  if (clique->size == 0) {
    clique->size = init.size;
    clique->ranks.resize(static_cast<std::size_t>(init.size));
    clique->launches.resize(static_cast<std::size_t>(init.size));
  }
  ncclComm* const comm = init.comm;
  comm->clique = clique;
  for (const ncclComm* other : clique->ranks) {
    if (!other || other->gpu != comm->gpu) continue;
    const ncclResult_t result =
        refuse(ncclInvalidUsage, concat("Duplicate GPU detected : rank ", comm->rank, " and rank ",
                                        other->rank, " both on CUDA device ", comm->gpu));
    fail_clique(*clique, result);
    return comm->state = result;
  }
  clique->ranks[static_cast<std::size_t>(comm->rank)] = comm;
  const bool complete = std::ranges::count(clique->ranks, nullptr) == 0;
  if (complete && setting("init_never") == 0) fail_clique(*clique, ncclSuccess);
  return ncclInProgress;
}

ncclResult_t end_launch(ncclComm* comm, NcclLaunch launch) {
  Everything& all = everything();
  if (++all.num_launches == setting("async_error")) {
    comm->state = refuse(ncclRemoteError, "injected: the connection to the peer was lost");
    return ncclInProgress;
  }
  comm->state = ncclInProgress;
  comm->clique->launches[static_cast<std::size_t>(comm->rank)].push_back(std::move(launch));
  if (setting("launch_never") == 0) run_if_complete(*comm->clique);
  return ncclInProgress;
}

ncclResult_t end_group() {
  OpenGroup group = std::exchange(open_group, OpenGroup());
  if (group.failure != ncclSuccess) return group.failure;
  ncclResult_t result = ncclSuccess;
  for (const Init& init : group.inits) {
    result = end_init(init);
    if (result != ncclInProgress) return result;
  }
  for (auto& [comm, launch] : group.launches) result = end_launch(comm, std::move(launch));
  return result;
}

ncclResult_t add(ncclComm* comm, cudaStream_t stream, const NcclCall& call) {
  MutexLock lock(everything().mutex);
  ncclResult_t result = check_call(comm, call, stream);
  if (result == ncclSuccess && open_group.depth == 0) result = check_alone(comm, call);
  if (result != ncclSuccess) return open_group.failure = result;
  everything().notes += concat(call.name(), " rank ", comm->rank, " count ", call.count, "\n");
  auto& launches = open_group.launches;
  const auto own = std::ranges::find(launches, comm, [](const auto& each) { return each.first; });
  NcclLaunch& launch = own == launches.end()
                           ? launches.emplace_back(comm, NcclLaunch{comm->rank, stream, {}}).second
                           : own->second;
  launch.calls.push_back(call);
  return open_group.depth == 0 ? end_group() : ncclSuccess;
}

}  // namespace
}  // namespace tutti::cuda_simulation

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const std::int64_t wanted = setting("version");
  *version = wanted == 0 ? NCCL_VERSION_CODE : static_cast<int>(wanted);
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  MutexLock lock(everything().mutex);
  *id = {};
  const std::string text = tutti::concat("clique ", ++everything().num_ids);
  text.copy(id->internal, sizeof(id->internal));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  MutexLock lock(everything().mutex);
  if (!config || config->magic != 0xcafebeef || config->blocking != 0) {
    return refuse(ncclInvalidArgument, "expected an initialised config with blocking = 0");
  }
  if (rank < 0 || rank >= size) return refuse(ncclInvalidArgument, "expected 0 <= rank < size");
  auto made = std::make_unique<ncclComm>();
  made->rank = rank;
  made->thread = &open_group;
  if (cudaGetDevice(&made->gpu) != cudaSuccess) return ncclUnhandledCudaError;
  everything().notes += tutti::concat("init rank ", rank, " of ", size, " GPU ", made->gpu, "\n");
  *comm = made.get();
  everything().comms.push_back(std::move(made));
  const Init init{*comm, std::string(id.internal, sizeof(id.internal)), size};
  if (open_group.depth == 0) return end_init(init);
  open_group.inits.push_back(init);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  MutexLock lock(everything().mutex);
  if (const ncclResult_t dead = check_alive(comm); dead != ncclSuccess) return dead;
  comm->life = ncclComm::kFinalized;
  everything().notes += tutti::concat("finalize rank ", comm->rank, "\n");
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  MutexLock lock(everything().mutex);
  if (const ncclResult_t dead = check_alive(comm); dead != ncclSuccess) return dead;
  comm->life = ncclComm::kDestroyed;
  everything().notes += tutti::concat("destroy rank ", comm->rank, "\n");
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  MutexLock lock(everything().mutex);
  if (const ncclResult_t dead = check_alive(comm); dead != ncclSuccess) return dead;
  comm->life = ncclComm::kAborted;
  if (comm->clique) {
    for (const auto& joint : std::exchange(comm->clique->stuck, {})) cancel(*joint);
  }
  everything().notes += tutti::concat("abort rank ", comm->rank, "\n");
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  MutexLock lock(everything().mutex);
  if (const ncclResult_t dead = check_alive(comm); dead != ncclSuccess) return dead;
  const std::int64_t when = setting("async_later");
  if (when > 0 && ++everything().num_questions >= when && comm->state == ncclSuccess) {
    comm->state = refuse(ncclRemoteError, "injected: the peer has ended");
  }
  *result = comm->state;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "unknown error";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  thread_local std::string text;
  MutexLock lock(everything().mutex);
  text = everything().last_error;
  return text.c_str();
}

ncclResult_t ncclGroupStart() {
  MutexLock lock(everything().mutex);
  if (open_group.depth++ == 0) everything().notes += "group start\n";
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  MutexLock lock(everything().mutex);
  if (open_group.depth == 0) return refuse(ncclInvalidUsage, "unmatched ncclGroupEnd()");
  if (--open_group.depth > 0) return ncclSuccess;
  everything().notes += "group end\n";
  return end_group();
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {NcclKind::kAllReduce, send, receive, count, type, op, -1});
}
ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {NcclKind::kReduce, send, receive, count, type, op, root});
}
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {NcclKind::kBroadcast, send, receive, count, type, ncclSum, root});
}
ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {NcclKind::kAllGather, send, receive, count, type, ncclSum, -1});
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {NcclKind::kReduceScatter, send, receive, count, type, op, -1});
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {NcclKind::kSend, send, nullptr, count, type, ncclSum, peer});
}
ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(comm, stream, {NcclKind::kReceive, nullptr, receive, count, type, ncclSum, peer});
}

const char* tutti_simulated_nccl_notes() {
  thread_local std::string text;
  MutexLock lock(everything().mutex);
  text = std::exchange(everything().notes, {});
  everything().num_launches = 0;
  everything().num_questions = 0;
  return text.c_str();
}

}  // extern "C"
