// Values by key that all ranks see: as files of a folder, or told to all ranks by messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti {

/// One file per key, replaced by renaming: a reader sees the old value or the new one. The folder
/// (made if missing) may be on a disk that several machines share. What an earlier run left there
/// is still there: give each run its own folder, or users that can tell (connect_ranks() can).
/// wait() looks again after 1 to 50 ms. Throws kUnavailable naming path and reason when the system
/// refuses. Threads: any; processes: any.
class FileKeyValueStore final : public KeyValueStore {
 public:
  explicit FileKeyValueStore(std::string folder);
  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> get(std::string_view key) override;
  std::string wait(std::string_view key, TimePoint deadline) override;

 private:
  std::string path_of(std::string_view key) const;
  std::string name() const;

  std::string folder_;
};

/// Lets ranks that have one way to each other find another one: under mpirun, the addresses of TCP
/// connections or the id of NCCL travel by MPI. Each rank makes one over its part of the transport
/// and tells all others what it sets; a key belongs to one rank (when two set it, ranks may see
/// either value). Without a thread: calls move the messages, so a value of more than a few KiB is
/// on its way for as long as its rank calls. A rank that is gone has told what it told. Threads:
/// any.
class MessageKeyValueStore final : public KeyValueStore {
 public:
  explicit MessageKeyValueStore(std::shared_ptr<Transport> transport);
  ~MessageKeyValueStore() override;
  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> get(std::string_view key) override;
  std::string wait(std::string_view key, TimePoint deadline) override;

 private:
  /// The lengths of key and value.
  using Lengths = std::array<std::uint64_t, 2>;
  /// From one peer: first lengths, then key and value.
  struct Incoming {
    Lengths lengths{};
    std::string text;
    std::unique_ptr<Work> work;  // none: the peer is gone
    bool is_text = false;        // or lengths
  };
  struct Outgoing {
    Lengths lengths{};
    std::string text;
    std::vector<std::unique_ptr<Work>> works;
  };

  void look() TUTTI_REQUIRES(mutex_);
  bool take(int peer, Incoming& incoming) TUTTI_REQUIRES(mutex_);
  void expect_lengths(int peer, Incoming& incoming) TUTTI_REQUIRES(mutex_);

  const std::shared_ptr<Transport> transport_;
  Mutex mutex_;
  std::map<std::string, std::string, std::less<>> values_ TUTTI_GUARDED_BY(mutex_);
  std::vector<Incoming> incoming_ TUTTI_GUARDED_BY(mutex_);  // by rank
  std::list<Outgoing> outgoing_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
