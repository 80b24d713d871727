// Checkpoints: variables and named state that survive the process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/autograd/variable_storage.h"
#include "tutti/core/json.h"
#include "tutti/core/source_location.h"

namespace tutti {

/// Functions that save and restore a small value that is not a variable: the position of the input,
/// a counter, random keys.
struct StateProvider {
  std::function<Json()> save;
  std::function<void(const Json&)> restore;
};

/// Same as StateProvider, but for named tensors that are not variables. `restore` looks up the
/// tensors that it needs and checks them itself.
struct TensorProvider {
  std::function<std::vector<NamedTensor>()> save;
  std::function<void(const TensorLookup&)> restore;
};

/// Description of a checkpoint. For a file that another program wrote, `step` is 0, and
/// `tutti_version` and `numerics` are empty.
struct CheckpointInfo {
  std::int64_t step = 0;
  std::string tutti_version;
  std::string numerics;         // numerics_fingerprint() of the program that saved it
  std::int64_t sequence = 0;    // number of the save in its folder, from 1; 0 for a single file
  std::string path;             // path of the file or version; empty if in memory
  Json about = Json::object();  // set by Checkpoint::set_about()

  bool operator==(const CheckpointInfo&) const = default;
};

/// Sends `own` to all workers, and returns the strings of all workers in worker order. Collective:
/// every worker must call it. Throws an error that names a worker that does not take part.
using ExchangeTexts = std::function<std::vector<std::string>(const std::string& own)>;

struct CheckpointOptions {
  /// True if this process writes. All workers call save(), because reading a variable can be a
  /// collective operation, but only one of them (the chief) should write. The other workers pass
  /// false.
  bool writes = true;
  /// Collective function that returns the writing process's string to all processes. If set, only
  /// the writing process reads files, and all processes restore the values that it read. If empty,
  /// each process reads the files. checkpoint_options(strategy) sets it.
  std::function<std::string(const std::string& own)> from_writer = {};
  /// Index of this worker; worker 0 writes.
  int worker = 0;
  /// Connects all workers for one save or restore, in which each worker handles its own parts of
  /// values (CheckpointManagerOptions::sharded). Collective; must not run concurrently with other
  /// collective calls. Another thread calls the returned function, while the thread that called
  /// `connect` may make other calls. If `connect` is empty, values are not saved in parts.
  /// checkpoint_options(strategy) sets it.
  std::function<ExchangeTexts()> connect = {};
};

struct RestoreOptions {
  /// If true, ignores tensors and state that the file contains but the program lacks; if false,
  /// they are errors.
  bool ignore_unknown = false;
  /// For CheckpointManager::restore_latest(): if true, a damaged version is an error; if false, the
  /// damage is logged and the preceding version is restored.
  bool strict = false;
};

namespace internal {
struct CheckpointFile;
/// Form in which a sharded variable is saved. kWhole: as one tensor. kParts: as this process's
/// parts. kWholeOfWorkers: as one tensor if it is sharded over processes, in parts if only over
/// this process's devices.
enum class SavedAs { kWhole, kWholeOfWorkers, kParts };
}  // namespace internal

/// Values of a checkpoint at one moment, in memory. Copies of the snapshot share its buffers, as do
/// the variables until they are next written. Created by Checkpoint::snapshot().
class CheckpointSnapshot {
 public:
  CheckpointSnapshot() = default;
  explicit CheckpointSnapshot(std::shared_ptr<const internal::CheckpointFile> values)
      : values_(std::move(values)) {}
  const internal::CheckpointFile& values() const { return *values_; }

 private:
  std::shared_ptr<const internal::CheckpointFile> values_;
};

/// Set of variables and named state that are saved and restored together. Like tf.train.Checkpoint.
/// Create every variable, including the slots of optimizers, before saving or restoring. Not
/// thread-safe; call it outside of replicas. Names and shapes are global, so that a checkpoint can
/// be restored with another strategy or number of workers.
///
/// Restoring changes everything or nothing. First all names, shapes and dtypes are compared, and
/// one error (kInvalidArgument) lists all mismatches. If restoring fails later, the previous values
/// are restored. If the program's numerics fingerprint differs from the saved one, a warning names
/// both: training then continues, but may not be bit-identical (docs/determinism.md).
class Checkpoint {
 public:
  explicit Checkpoint(std::vector<Variable> variables = {}, CheckpointOptions options = {});

  /// Adds the variables that the checkpoint does not contain yet. Throws kAlreadyExists if it
  /// contains another variable of the same name. Like add_state() and add_tensors(), restores
  /// values that restore_deferred() keeps for the added names.
  void add(const std::vector<Variable>& variables);
  /// Adds state that `provider` saves and restores. Throws kAlreadyExists if the name is taken, and
  /// kInvalidArgument if a function is missing.
  void add_state(std::string name, StateProvider provider);
  /// Same as add_state(), but for tensors, which are stored as "<name>/<tensor name>".
  void add_tensors(std::string name, TensorProvider provider);

  /// Adds a note for readers of the file, such as the strategy's name. It is never restored.
  void set_about(std::string key, Json value);

  const std::vector<Variable>& variables() const { return variables_; }
  const CheckpointOptions& options() const { return options_; }

  /// Writes one safetensors file with the values and `step`, atomically; creates missing folders.
  /// If options().writes is false, reads the same variables and writes nothing.
  void save(const std::string& path, std::int64_t step = 0,
            const SourceLocation& where = SourceLocation::current()) const;
  /// Restores a file that save() wrote, or a version of a CheckpointManager (a folder). Throws
  /// kDataLoss, naming the file and the tensor or offset, for damaged bytes.
  CheckpointInfo restore(const std::string& path, RestoreOptions options = {},
                         const SourceLocation& where = SourceLocation::current()) const;
  /// Same as restore(), but may precede add(): values whose names are not known yet wait in memory
  /// until add(), add_state() or add_tensors() adds the names. While values wait, these functions
  /// throw kInvalidArgument, and add nothing, for a name that the file lacks or has with another
  /// shape. Like tf.train.Checkpoint's deferred restoration.
  CheckpointInfo restore_deferred(const std::string& path,
                                  const SourceLocation& where = SourceLocation::current());
  /// Returns the names for which restore_deferred() still keeps values, because nothing with these
  /// names has been added yet. tf's assert_consumed() checks that no such names remain.
  std::vector<std::string> waiting() const;

  /// Returns the contents of the file that save() writes, to send or store elsewhere. Collective:
  /// every process of a strategy must call it.
  std::string save_to_bytes(std::int64_t step = 0) const;
  static std::string to_bytes(const CheckpointSnapshot& snapshot);
  /// Same as save() and restore(), but in memory. Collective: every process must call them.
  CheckpointSnapshot snapshot(std::int64_t step = 0) const;
  CheckpointInfo restore(const CheckpointSnapshot& snapshot, RestoreOptions options = {}) const;
  /// `source` names the bytes in errors.
  CheckpointInfo restore_from_bytes(std::string_view bytes, const std::string& source,
                                    RestoreOptions options = {}) const;

 private:
  friend class CheckpointManager;
  using States = std::map<std::string, StateProvider>;
  using Tensors = std::map<std::string, TensorProvider>;
  /// Restores, from waiting_, the items that are about to be added.
  void restore_deferred_items(const std::vector<Variable>& variables, const States& states = {},
                              const Tensors& tensors = {});
  internal::CheckpointFile values(std::int64_t step,
                                  internal::SavedAs form = internal::SavedAs::kWhole) const;
  /// Returns this worker's parts of variables that are sharded across workers.
  std::map<std::string, TensorPart> own_parts() const;
  CheckpointInfo take(const internal::CheckpointFile& file, const std::string& source,
                      RestoreOptions options) const;
  /// A Reader returns the file to restore, or nullopt if there is none. It reads files with `read`.
  using ReadPath = std::function<internal::CheckpointFile(const std::string& path)>;
  using Reader = std::function<std::optional<internal::CheckpointFile>(const ReadPath& read)>;
  /// Returns the result of `find` in this process or, with from_writer, in the writing process.
  std::optional<internal::CheckpointFile> file_of(const Reader& find) const;
  /// Restores the file that `find` returns. On a shared disk, each worker reads only its own parts
  /// of a version. `own_path` maps a version's name to the path at which this worker finds the
  /// version. For `sharded`, see CheckpointManagerOptions.
  using OwnPath = std::function<std::string(const std::string& name)>;
  std::optional<CheckpointInfo> restore_found(const Reader& find, const OwnPath& own_path,
                                              std::optional<bool> sharded,
                                              RestoreOptions options) const;

  std::vector<Variable> variables_;
  CheckpointOptions options_;
  States states_;
  Tensors tensors_;
  Json about_ = Json::object();
  std::shared_ptr<const internal::CheckpointFile> waiting_;  // null if no values wait
};

/// Saves only the variables, by name, in a file that other programs can also read.
void save_weights(const std::string& path, const std::vector<Variable>& variables,
                  CheckpointOptions options = {},
                  const SourceLocation& where = SourceLocation::current());
/// Options for load_weights() with files from other programs.
struct LoadWeightsOptions {
  /// If true, ignores state and any tensors that belong to no variable; if false, they are errors.
  bool ignore_unknown = false;
  /// Map from names in the file to names of variables: {"fc1.weight", "dense/kernel"}.
  std::map<std::string, std::string> rename = {};
  /// Substrings of the names of variables whose tensors in the file have PyTorch's layout, with the
  /// output dimension first: [out, in] becomes [in, out], [out, in, height, width] becomes [height,
  /// width, in, out], a depthwise [channels * multiplier, 1, height, width] becomes [height, width,
  /// channels, multiplier].
  std::vector<std::string> transpose = {};
  /// If false, variables that the file lacks keep their values (logged), and ignore_unknown is
  /// implied.
  bool strict = true;
};

/// Loads variables from a file of weights, a full checkpoint (see ignore_unknown), or a Hugging
/// Face model: its folder, or its `model.safetensors.index.json`. Floating-point tensors are cast
/// to the types of the variables, which is logged once. Changes everything or nothing, like
/// Checkpoint::restore(). Throws kInvalidArgument, listing the contents of the file and the
/// variables, if they do not match. Even without `strict`, throws if the file has none of the
/// variables.
CheckpointInfo load_weights(const std::string& path, const std::vector<Variable>& variables,
                            LoadWeightsOptions options = {});

}  // namespace tutti
