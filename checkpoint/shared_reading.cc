// Reading a checkpoint in one of several processes.
// SPDX-License-Identifier: Apache-2.0
//
// Two texts: first what was found (path and sequence, an error, or nothing), then the values in the
// form of a file, whose checksums are compared once more.
#include "tutti/checkpoint/shared_reading.h"

#include <utility>

namespace tutti::internal {
namespace {

/// What the process that writes has found.
struct Found {
  std::optional<CheckpointFile> file;
  std::optional<Error> error;
};

Found find_here(const std::function<std::optional<CheckpointFile>()>& read) {
  try {
    return {read(), std::nullopt};
  } catch (const Error& error) {
    return {std::nullopt, error};
  } catch (const std::exception& error) {
    return {std::nullopt, Error(ErrorCode::kInternal, error.what())};
  }
}

Json describe(const Found& found) {
  Json json = Json::object();
  if (found.error) {
    json.set("code", static_cast<int>(found.error->code()));
    json.set("message", found.error->message());
  } else if (found.file) {
    json.set("path", found.file->info.path);
    json.set("sequence", found.file->info.sequence);
  }
  return json;
}

}  // namespace

std::optional<CheckpointFile> read_by_writer(
    const std::function<std::optional<CheckpointFile>()>& read, const CheckpointOptions& options) {
  Found found;
  if (options.writes) found = find_here(read);
  const Json about = Json::parse(options.from_writer(describe(found).dump()), "checkpoint");
  if (const Json* const code = about.find("code")) {
    throw Error(static_cast<ErrorCode>(code->as_int()), about.at("message").as_string());
  }
  if (!about.find("path")) return std::nullopt;
  const std::string bytes =
      options.from_writer(found.file ? format_checkpoint_file(*found.file) : "");
  if (found.file) return std::move(found.file);
  const std::string path = about.at("path").as_string();
  CheckpointFile file = parse_checkpoint_file(bytes, concat(path, " as another process read it"));
  file.info.path = path;
  file.info.sequence = about.at("sequence").as_int();
  return file;
}

}  // namespace tutti::internal
