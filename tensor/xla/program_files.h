// Compiled programs in a folder: what one process has compiled others load.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/xla/pjrt_client.h"

namespace tutti::internal {

/// A file per program in the folder that TUTTI_XLA_CACHE names. A plugin takes the bytes of another
/// version without a word and computes wrong values, so each file says what it is for: the plugin's
/// own hash, the processor, the options and the text. Any thread, any number of processes.
class ProgramFiles {
 public:
  explicit ProgramFiles(const PjrtClient& client) : client_(client) {}

  /// nullptr without a folder or a file; a file that is damaged, or of something else, is warned
  /// of and left aside.
  std::unique_ptr<PjrtExecutable> find(std::string_view text,
                                       const std::vector<int>& devices) const;
  /// Writes it to the folder, if there is one. What goes wrong is a warning.
  void keep(const PjrtExecutable& program, std::string_view text,
            const std::vector<int>& devices) const;

 private:
  const PjrtClient& client_;
};

}  // namespace tutti::internal
