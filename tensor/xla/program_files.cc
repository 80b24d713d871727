// Files of compiled programs: what they are for, a checksum, the plugin's bytes.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/program_files.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "core/file.h"
#include "core/hash.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// Machine code is for what the processor can do.
std::string processor() {
  std::istringstream lines(read_file_if_any("/proc/cpuinfo"));
  std::string text;
  for (std::string line; std::getline(lines, line) && !line.empty();) {
    for (const char* key : {"model name", "flags", "CPU implementer", "CPU part", "Features"}) {
      if (line.starts_with(key)) text += line;
    }
  }
  return hash_of(text);
}

/// One line: two programs of equal keys are the same.
std::string key_of(const PjrtClient& client, std::string_view text,
                   const std::vector<int>& devices) {
  static const std::string this_processor = processor();
  return concat("tutti program 1, plugin ", client.plugin().file_hash(), " ", client.platform(),
                ", processor ", this_processor, ", options ",
                hash_of(client.compile_options(devices)), " ", hash_of(variable("XLA_FLAGS")),
                ", text ", hash_of(text), "\n");
}

std::string folder() { return variable("TUTTI_XLA_CACHE"); }

std::string path_of(const std::string& key) {
  return (std::filesystem::path(folder()) / (hash_of(key) + ".xla")).string();
}

constexpr std::size_t kHashSize = 32;

void warn(const std::string& path, std::string_view what, std::string_view reason) {
  log_warning(concat("XLA: ", path, " ", what, ": ", reason,
                     "; the step is compiled; try removing the file, or another TUTTI_XLA_CACHE"));
}

}  // namespace

std::unique_ptr<PjrtExecutable> ProgramFiles::find(std::string_view text,
                                                   const std::vector<int>& devices) const {
  if (folder().empty()) return nullptr;
  const std::string key = key_of(client_, text, devices), path = path_of(key);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return nullptr;
  try {
    const std::string file = read_file(path);
    const std::string_view all = file;
    if (!all.starts_with(key)) {
      warn(path, "is not used", "it is no program of this plugin, processor and text");
      return nullptr;
    }
    const std::string_view rest = all.substr(key.size());
    const std::string_view bytes = rest.substr(std::min(kHashSize, rest.size()));
    if (rest.substr(0, kHashSize) != hash_of(bytes)) {
      warn(path, "is not used", "it is damaged: its checksum is another one");
      return nullptr;
    }
    return client_.load(bytes, devices.size());
  } catch (const Error& failure) {
    warn(path, "is not used", failure.message());
    return nullptr;
  }
}

void ProgramFiles::keep(const PjrtExecutable& program, std::string_view text,
                        const std::vector<int>& devices) const {
  if (folder().empty()) return;
  const std::string key = key_of(client_, text, devices), path = path_of(key);
  try {
    const std::string bytes = program.serialize();
    write_file_atomically(path, concat(key, hash_of(bytes), bytes));
  } catch (const Error& failure) {
    warn(path, "is not written", failure.message());
  }
}

}  // namespace tutti::internal
