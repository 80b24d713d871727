// Implements folders and their files through POSIX calls relative to a descriptor.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>

#include "core/names.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"

namespace tutti::internal {
namespace {

std::string reason_of(int error) { return std::generic_category().message(error); }

bool is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

const char* advice_for(int error) {
  if (is_full(error)) return "; free space, or use another folder or a smaller max_to_keep";
  if (error == EROFS || error == EACCES || error == EPERM) {
    return "; try a folder that this program may write to";
  }
  if (error == EIO) return "; try another disk: this one reports errors";
  return "";
}

[[noreturn]] void fail_to_write(const std::string& path, int error) {
  fail(is_full(error) ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
       "Checkpoint: cannot write '", path, "': ", reason_of(error), advice_for(error));
}

[[noreturn]] void fail_to_write(const std::string& path, std::uint64_t num_bytes, int folder,
                                int error) {
  struct statvfs space;
  const bool known = ::fstatvfs(folder, &space) == 0;
  const auto bytes_free = known ? std::uint64_t{space.f_bavail} * space.f_frsize : 0;
  fail(is_full(error) ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
       "Checkpoint: cannot write '", path, "': ", reason_of(error), "; bytes needed: ", num_bytes,
       ", bytes free: ", known ? concat(bytes_free) : std::string("unknown"), advice_for(error));
}

// Returns true for errors that indicate damage, as opposed to missing permissions, for example.
bool is_damage(int error) {
  return error == ENOENT || error == EIO || error == ELOOP || error == ENXIO || error == EISDIR ||
         error == ENODEV || error == EUCLEAN;
}

[[noreturn]] void fail_to_read(const std::string& path, int error) {
  fail(is_damage(error) ? ErrorCode::kDataLoss : ErrorCode::kUnavailable,
       "Checkpoint: cannot read '", path, "': ", reason_of(error));
}

bool sync_descriptor(int fd) {
  const AsleepScope asleep;  // the thread waits for the disk
  return ::fsync(fd) == 0;
}

constexpr int kReadFile = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
constexpr int kNewFile = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
constexpr int kGrowingFile = O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

}  // namespace

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         has_only_alphanumerics_and("._-", name);
}

void FileReader::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = uninterrupted([&] {
      return ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    });
    if (count <= 0) {
      fail(count == 0 || is_damage(errno) ? ErrorCode::kDataLoss : ErrorCode::kUnavailable, path_,
           ": offset ", offset, ": ", count == 0 ? "the file ends" : reason_of(errno),
           "; expected ", bytes.size(), " more bytes");
    }
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

std::string FileReader::read_text(std::uint64_t offset, std::size_t count) const {
  std::string text(count, '\0');
  read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

FileWriter::~FileWriter() {
  if (finished_) return;
  file_.close();
  ::unlinkat(folder_, name_.c_str(), 0);
}

// Reserves disk space, so that a save to a full disk fails before any time is spent on writing.
void FileWriter::reserve() {
  if (num_bytes_ == 0) return;
  const FileSizeLimitScope error_instead_of_signal;
  if (::fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(num_bytes_)) == 0) return;
  if (is_full(errno) || errno == EIO) fail_to_write(path_, num_bytes_, folder_, errno);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  if (!write_all(file_.get(), bytes)) fail_to_write(path_, num_bytes_, folder_, errno);
}

void FileWriter::finish() {
  if (!sync_descriptor(file_.get()) || !file_.close()) {
    fail_to_write(path_, num_bytes_, folder_, errno);
  }
  finished_ = true;
}

void FileAppender::write(std::span<const std::byte> bytes) {
  if (!write_all(file_.get(), bytes)) fail_to_write(path_, bytes.size(), folder_, errno);
}

void FileAppender::sync() {
  if (!sync_descriptor(file_.get())) fail_to_write(path_, errno);
}

Folder Folder::open(const std::string& path) {
  FileDescriptor folder(::open(path.c_str(), kFolder));
  if (folder.get() < 0) {
    fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kUnavailable,
         "Checkpoint: cannot open folder '", path, "': ", reason_of(errno));
  }
  return Folder(std::move(folder), path);
}

std::optional<Folder> Folder::open_if_there(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return std::nullopt;
  return open(path);
}

Folder Folder::make(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path missing = fs::absolute(path).lexically_normal();
  if (!missing.has_filename()) missing = missing.parent_path();
  std::vector<fs::path> made;
  for (; !fs::exists(missing, error) && missing.has_relative_path();
       missing = missing.parent_path()) {
    made.push_back(missing);
  }
  for (auto folder = made.rbegin(); folder != made.rend(); ++folder) {
    if (::mkdir(folder->c_str(), 0777) != 0 && errno != EEXIST) {
      fail_to_write(folder->string(), errno);
    }
    Folder::open(folder->parent_path().string()).sync();
  }
  return open(path);
}

std::string Folder::path_of(std::string_view name) const {
  return (std::filesystem::path(path_) / name).string();
}

std::vector<std::string> Folder::names() const {
  const auto close = [](DIR* stream) { ::closedir(stream); };
  FileDescriptor again(::openat(folder_.get(), ".", kFolder));
  const std::unique_ptr<DIR, decltype(close)> stream(::fdopendir(again.get()), close);
  if (!stream) fail_to_read(path_, errno);
  again.release();  // the stream closes this descriptor
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) fail_to_read(path_, errno);
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<Folder> Folder::find_folder(const std::string& name) const {
  FileDescriptor folder(::openat(folder_.get(), name.c_str(), kFolder | O_NOFOLLOW));
  if (folder.get() >= 0) return Folder(std::move(folder), path_of(name));
  if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return std::nullopt;
  fail_to_read(path_of(name), errno);
}

Folder Folder::make_folder(const std::string& name) const {
  if (::mkdirat(folder_.get(), name.c_str(), 0777) == 0) {
    sync();
  } else if (errno != EEXIST) {
    fail_to_write(path_of(name), errno);
  }
  std::optional<Folder> folder = find_folder(name);
  if (!folder) fail_to_write(path_of(name), ENOTDIR);
  return std::move(*folder);
}

std::optional<struct stat> Folder::status_of(const std::string& name) const {
  struct stat status;
  if (::fstatat(folder_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return status;
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  fail_to_read(path_of(name), errno);
}

bool Folder::exists(const std::string& name) const { return status_of(name).has_value(); }

std::optional<std::uint64_t> Folder::size_of(const std::string& name) const {
  const std::optional<struct stat> status = status_of(name);
  if (!status || !S_ISREG(status->st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(status->st_size);
}

bool Folder::is_link(const std::string& name) const {
  const std::optional<struct stat> status = status_of(name);
  return status && S_ISLNK(status->st_mode);
}

FileReader Folder::open_file(const std::string& name) const {
  FileDescriptor file(::openat(folder_.get(), name.c_str(), kReadFile));
  if (file.get() < 0) fail_to_read(path_of(name), errno);
  struct stat status;
  if (::fstat(file.get(), &status) != 0) fail_to_read(path_of(name), errno);
  if (!S_ISREG(status.st_mode)) {
    fail(ErrorCode::kDataLoss, "Checkpoint: '", path_of(name),
         "': expected a regular file, got something else");
  }
  return FileReader(std::move(file), path_of(name), static_cast<std::uint64_t>(status.st_size));
}

FileWriter Folder::create_file(const std::string& name, std::uint64_t num_bytes) const {
  if (!remove(name)) fail_to_write(path_of(name), num_bytes, folder_.get(), errno);
  FileDescriptor file(::openat(folder_.get(), name.c_str(), kNewFile, 0666));
  if (file.get() < 0) fail_to_write(path_of(name), num_bytes, folder_.get(), errno);
  return FileWriter(folder_.get(), std::move(file), name, path_of(name), num_bytes);
}

FileAppender Folder::append_to(const std::string& name) const {
  FileDescriptor file(::openat(folder_.get(), name.c_str(), kGrowingFile));
  if (file.get() < 0) fail_to_write(path_of(name), errno);
  return FileAppender(folder_.get(), std::move(file), path_of(name));
}

void Folder::rename(const std::string& from, const std::string& to) const {
  if (::renameat(folder_.get(), from.c_str(), folder_.get(), to.c_str()) != 0) {
    fail_to_write(path_of(to), errno);
  }
}

bool Folder::remove(const std::string& name) const noexcept {
  return ::unlinkat(folder_.get(), name.c_str(), 0) == 0 || errno == ENOENT;
}

bool Folder::remove_folder(const std::string& name) const noexcept {
  return ::unlinkat(folder_.get(), name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT;
}

// File systems that cannot sync folders return EINVAL.
void Folder::sync() const {
  if (!sync_descriptor(folder_.get()) && errno != EINVAL && errno != EROFS) {
    fail_to_write(path_, errno);
  }
}

void Folder::lock() const {
  if (::flock(folder_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  fail(ErrorCode::kFailedPrecondition, "Checkpoint: another process is saving into '", path_,
       "'; expected one writer per folder; use a separate folder for each run");
}

}  // namespace tutti::internal
