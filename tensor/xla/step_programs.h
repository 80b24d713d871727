// Traced steps as compiled programs: compared, compiled once, run on all devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/xla/step_trace.h"

namespace tutti::internal {

/// The programs of one user's steps by their text. One thread at a time.
class StepPrograms {
 public:
  /// Replica r runs on device devices[r] of XLA.
  explicit StepPrograms(std::vector<int> devices) : devices_(std::move(devices)) {}

  /// Computes what the traces of all replicas, in order, made and somebody still holds; returns
  /// when it is done. Values that nobody will ask for again give their memory to the results.
  /// Throws kInvalidArgument naming operation and line when replicas do not do the same, and what
  /// the compiler and the devices say.
  void run(std::span<const std::unique_ptr<Trace>> traces);

  /// Those that were in a file (ProgramFiles) do not count.
  int num_compiled() const { return num_compiled_; }
  /// Of the program that ran last; empty: none did.
  const std::string& last_text() const { return last_text_; }

 private:
  /// What the host had and a device has a copy of, from one step to the next.
  struct Upload {
    BufferRef buffer;  // held: its elements stay as they are
    TensorSpec spec;
    std::shared_ptr<PjrtBuffer> copy;
  };
  using Uploads = std::map<std::pair<const std::byte*, int>, Upload>;

  std::vector<bool> find_donated(std::span<const std::unique_ptr<Trace>> traces) const;
  const PjrtExecutable& find_or_compile(std::string text);
  std::vector<PjrtExecutable::Buffers> put_arguments(std::span<const std::unique_ptr<Trace>> traces,
                                                     const std::vector<bool>& donated);

  const std::vector<int> devices_;
  std::map<std::string, std::unique_ptr<PjrtExecutable>> programs_;
  int num_compiled_ = 0;
  std::string last_text_;
  Uploads uploads_;
};

}  // namespace tutti::internal
