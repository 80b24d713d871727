// What a coordinator orders of a server process: to save, to go back, to refuse what is older.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "tutti/cluster/rpc/packet.h"
#include "tutti/strategy/parameter_server/durability.h"

namespace tutti::internal {

namespace orders {

/// The first, and again to see whether the server lives. `run`: the chief's random number. A server
/// of another run refuses (kAborted): it ends soon. With `sets_up` variables may be made; without,
/// a server that was begun anew answers nobody else until it knows which cut to load.
struct Meet {
  std::uint64_t run = 0;
  bool sets_up = false;
  bool operator==(const Meet&) const = default;
};
/// Where it saves, on its own machine, for which job, and what. Errors as SnapshotFolder.
struct KeepIn {
  std::string folder = {};
  std::string job_id = {};
  Durability durability = Durability::kSnapshot;
  bool operator==(const KeepIn&) const = default;
};
/// ServerGroup::save(), of one server.
struct SaveCut {
  std::uint64_t cut = 0;
  std::uint64_t term = 0;
  std::uint64_t keep = 0;
  bool operator==(const SaveCut&) const = default;
};
/// Reads the state that GoBack will take: of this cut, and, if it is logged, what came since. What
/// it serves stays as it is.
struct PrepareCut {
  std::uint64_t cut = 0;
  std::uint64_t term = 0;
  bool operator==(const PrepareCut&) const = default;
};
/// The same, but takes the state from the server that keeps its copy. kAborted when that cannot be.
struct PrepareCopy {
  std::uint64_t cut = 0;
  std::uint64_t term = 0;
  bool operator==(const PrepareCopy&) const = default;
};
/// Has the next server keep a copy from now on. kAborted when that cannot be.
struct BeginCopy {
  std::uint64_t term = 0;
  bool operator==(const BeginCopy&) const = default;
};
/// Takes the prepared state, refuses what is older than the term, and answers those that wait.
struct GoBack {
  std::uint64_t cut = 0;
  std::uint64_t term = 0;
  bool operator==(const GoBack&) const = default;
};
/// Keeps its state, refuses what is older than the term, and answers those that wait.
struct Fence {
  std::uint64_t term = 0;
  bool operator==(const Fence&) const = default;
};

}  // namespace orders

/// To one life of a server (0: whichever answers, of Meet alone). Done twice it is as done once.
struct ServerOrder {
  std::uint64_t life = 0;
  std::variant<orders::Meet, orders::KeepIn, orders::SaveCut, orders::PrepareCut, orders::GoBack,
               orders::Fence, orders::PrepareCopy, orders::BeginCopy>
      what = {};
  bool operator==(const ServerOrder&) const = default;
};

/// Whether the packet is an order, and no batch of operations.
bool is_order(const Packet& packet);
Packet encode(const ServerOrder& order);
/// Throws kDataLoss for packets that encode() does not write.
ServerOrder decode_order(const Packet& packet);

/// The answer: which life obeyed, and what it cannot mend alone ("": nothing): "ps 1 (address),
/// which keeps its copy, ...".
struct ServerLife {
  std::uint64_t life = 0;
  std::string trouble = {};
  bool operator==(const ServerLife&) const = default;
};
Packet encode_life(const ServerLife& life);
/// Throws kDataLoss for packets that encode_life() does not write.
ServerLife decode_life(const Packet& packet);

}  // namespace tutti::internal
