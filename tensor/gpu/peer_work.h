// Work of GPUs that may never end: what whoever waits for a GPU asks meanwhile.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tensor/device_backend.h"
#include "tutti/core/clock.h"
#include "tutti/core/sync.h"

namespace tutti {

/// Pieces of work in the streams of GPUs that end only if others take part: collectives with other
/// GPUs and processes. Any thread.
class PeerWork {
 public:
  virtual ~PeerWork() = default;
  /// Whether some may not be done yet, or was given up.
  virtual bool is_pending() = 0;
  /// Throws the reason if some was given up; gives it up if it has failed or takes too long.
  virtual void check() = 0;
  /// Before the launch of a graph in which some may have been captured: throws if it cannot run.
  virtual void check_graph() = 0;
  /// The graph was launched: it runs from `began` to `ended`.
  virtual void note_graph(std::shared_ptr<DeviceEvent> began,
                          std::shared_ptr<DeviceEvent> ended) = 0;
};

/// The peer work of one device, and waits of the host beside it. Any thread.
class PeerWatch {
 public:
  using List = std::vector<std::shared_ptr<PeerWork>>;

  /// From now on, until it is gone, waits ask it.
  void add(const std::shared_ptr<PeerWork>& work);
  /// That which is not gone.
  List list() const;
  /// Returns when `event` is done. While peer work is pending: throws what its check() throws.
  void wait(const DeviceEvent& event) const;
  /// The same with an end: false if it is not done by then.
  bool wait_until(const DeviceEvent& event, TimePoint deadline) const;

 private:
  mutable Mutex mutex_;
  mutable std::vector<std::weak_ptr<PeerWork>> works_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
