// What the stand-in of NCCL does with elements.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_simulation/nccl_elements.h"

#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "tutti/tensor/dtype.h"

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
      fail(ErrorCode::kInternal, "simulated NCCL: no type ", static_cast<int>(type));
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

}  // namespace

const char* NcclCall::name() const {
  constexpr const char* kNames[] = {"all_reduce",     "reduce", "broadcast", "all_gather",
                                    "reduce_scatter", "send",   "receive"};
  return kNames[static_cast<std::size_t>(kind)];
}

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
  return sent == received ? std::string() : "mismatch: sends and receives do not fit together";
}

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

}  // namespace tutti::cuda_simulation
