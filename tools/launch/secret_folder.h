// The secret of a job, in a folder that only this user can read and that ends with the job.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti::launch {

/// Makes a folder (mode 0700) with a file (mode 0600) of 32 random bytes in hexadecimal, below
/// XDG_RUNTIME_DIR, TMPDIR or /tmp. The destructor removes both. Throws kUnavailable naming the
/// folder.
class SecretFolder {
 public:
  SecretFolder();
  ~SecretFolder();
  SecretFolder(const SecretFolder&) = delete;
  SecretFolder& operator=(const SecretFolder&) = delete;

  const std::string& folder() const { return folder_; }
  std::string file() const { return folder_ + "/secret"; }

 private:
  std::string folder_;
};

}  // namespace tutti::launch
