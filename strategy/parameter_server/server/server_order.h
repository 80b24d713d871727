// What a coordinator orders of a server process: to save, to load, to refuse what is older.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "tutti/cluster/rpc/packet.h"

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
/// Where it saves, on its own machine, and for which job. Errors as SnapshotFolder.
struct KeepIn {
  std::string folder = {};
  std::string job_id = {};
  bool operator==(const KeepIn&) const = default;
};
/// ServerGroup::save(), of one server.
struct SaveCut {
  std::uint64_t cut = 0;
  std::uint64_t term = 0;
  std::uint64_t keep = 0;
  bool operator==(const SaveCut&) const = default;
};
/// Takes the state of this cut and what its log says came since, refuses what is older than the
/// term, and answers those that wait. When it throws, the server is as it was.
struct Load {
  std::uint64_t cut = 0;
  std::uint64_t term = 0;
  bool operator==(const Load&) const = default;
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
  std::variant<orders::Meet, orders::KeepIn, orders::SaveCut, orders::Load, orders::Fence> what =
      {};
  bool operator==(const ServerOrder&) const = default;
};

Packet encode(const ServerOrder& order);
/// Throws kDataLoss for packets that encode() does not write.
ServerOrder decode_order(const Packet& packet);

/// The answer: which life obeyed.
Packet encode_life(std::uint64_t life);
/// Throws kDataLoss for packets that encode_life() does not write.
std::uint64_t decode_life(const Packet& packet);

}  // namespace tutti::internal
