// What survives the process: variables and named state.
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

/// Saves and restores something small that is no variable: the position of the input, a counter,
/// random keys.
struct StateProvider {
  std::function<Json()> save;
  std::function<void(const Json&)> restore;
};

/// The same for tensors that are no variables, by name; `restore` asks for those it wants and
/// checks them itself.
struct TensorProvider {
  std::function<std::vector<NamedTensor>()> save;
  std::function<void(const TensorLookup&)> restore;
};

/// What a checkpoint says about itself. A file of another program: step 0, no version, no
/// fingerprint.
struct CheckpointInfo {
  std::int64_t step = 0;
  std::string tutti_version;
  std::string numerics;       // numerics_fingerprint() of the program that saved it
  std::int64_t sequence = 0;  // the how manieth of its folder (CheckpointManager); 0: a single file
  std::string path;           // where it was read; empty: from memory
  Json about = Json::object();  // what Checkpoint::set_about() said

  bool operator==(const CheckpointInfo&) const = default;
};

/// Gives the texts of all workers, by worker, to each of them. A call of all. Throws, naming a
/// worker, when one does not come.
using ExchangeTexts = std::function<std::vector<std::string>(const std::string& own)>;

struct CheckpointOptions {
  /// Whether this process writes. Several workers all call save(), for reading a variable can
  /// be a meeting of all of them, but one alone should write (the chief): the others pass false.
  bool writes = true;
  /// Gives the text of the process that writes to all of them, each of which calls it. With it that
  /// process alone reads files, and all restore what it has read. Empty: each reads for itself.
  /// checkpoint_options(strategy) fills in both.
  std::function<std::string(const std::string& own)> from_writer = {};
  /// The number of this worker; 0 writes.
  int worker = 0;
  /// Connects all workers for one save, or restore, to which each gives, or of which each takes,
  /// the parts that it holds (CheckpointManagerOptions::sharded). A call of all, beside which none
  /// is under way; what it gives is called by another thread, beside other calls of the workers.
  /// Empty: values are saved whole. checkpoint_options(strategy) fills it in.
  std::function<ExchangeTexts()> connect = {};
};

struct RestoreOptions {
  /// Tensors and state of the file that the program does not know are left alone; otherwise they
  /// are errors.
  bool ignore_unknown = false;
  /// CheckpointManager::restore_latest(): a damaged version is an error; otherwise it is reported,
  /// and the version before it is taken.
  bool strict = false;
};

namespace internal {
struct CheckpointFile;
/// Whether a variable that is cut is put together, is so where other processes have parts of it, or
/// is saved as what this process has.
enum class SavedAs { kWhole, kWholeOfWorkers, kParts };
}  // namespace internal

/// The values of a moment, in memory: shared with the variables until these are written. Copies
/// share it. Made by Checkpoint::snapshot().
class CheckpointSnapshot {
 public:
  CheckpointSnapshot() = default;
  explicit CheckpointSnapshot(std::shared_ptr<const internal::CheckpointFile> values)
      : values_(std::move(values)) {}
  const internal::CheckpointFile& values() const { return *values_; }

 private:
  std::shared_ptr<const internal::CheckpointFile> values_;
};

/// A set of variables and named state that are saved and restored together. tf.train.Checkpoint.
/// Make every variable (slots of optimizers too) before saving or restoring. All functions: outside
/// replicas, one thread. Names and shapes are global: what one strategy and number of workers
/// saved, any other restores.
///
/// Restoring changes everything or nothing: first all names, shapes and dtypes are compared, and
/// one error (kInvalidArgument) lists all that does not fit; if taking over still fails, what was
/// changed is set back. A warning names both fingerprints when training goes on with another one
/// (docs/determinism.md): it goes on well, but not bit for bit.
class Checkpoint {
 public:
  explicit Checkpoint(std::vector<Variable> variables = {}, CheckpointOptions options = {});

  /// Variables that are already there stay once. Throws kAlreadyExists for another variable of the
  /// same name. Here and below: what waits() for this name is taken over.
  void add(const std::vector<Variable>& variables);
  /// Throws kAlreadyExists for a name that is taken, kInvalidArgument for a missing function.
  void add_state(std::string name, StateProvider provider);
  /// The tensors are stored as "<name>/<their name>"; likewise.
  void add_tensors(std::string name, TensorProvider provider);

  /// A remark for people and tools, such as the strategy's name: kept, shown, never restored.
  void set_about(std::string key, Json value);

  const std::vector<Variable>& variables() const { return variables_; }
  const CheckpointOptions& options() const { return options_; }

  /// Writes one safetensors file, atomically; missing folders are made. `step` is kept beside the
  /// values. With options().writes == false it reads the same variables and writes nothing.
  void save(const std::string& path, std::int64_t step = 0,
            const SourceLocation& where = SourceLocation::current()) const;
  /// From such a file, or a version of a CheckpointManager (a folder). Throws kDataLoss naming
  /// file, offset and tensor where bytes are damaged.
  CheckpointInfo restore(const std::string& path, RestoreOptions options = {},
                         const SourceLocation& where = SourceLocation::current()) const;
  /// The same, before everything is made: what the file has and this checkpoint has not yet waits
  /// in memory until add(), add_state() or add_tensors() names it. While something waits these
  /// throw kInvalidArgument, and add nothing, for what the file does not have or has in another
  /// shape. tf.train.Checkpoint's deferred restoration.
  CheckpointInfo restore_deferred(const std::string& path,
                                  const SourceLocation& where = SourceLocation::current());
  /// Names of tensors and states of restore_deferred() that nothing has taken yet. tf's
  /// assert_consumed() asks whether there are none.
  std::vector<std::string> waiting() const;

  /// The file of save() as bytes, for who sends or keeps it elsewhere. Every process of a strategy
  /// calls it.
  std::string save_to_bytes(std::int64_t step = 0) const;
  static std::string to_bytes(const CheckpointSnapshot& snapshot);
  /// Like save(), into memory. Every process of a strategy calls both.
  CheckpointSnapshot snapshot(std::int64_t step = 0) const;
  CheckpointInfo restore(const CheckpointSnapshot& snapshot, RestoreOptions options = {}) const;
  /// `source` names the bytes in errors.
  CheckpointInfo restore_from_bytes(std::string_view bytes, const std::string& source,
                                    RestoreOptions options = {}) const;

 private:
  friend class CheckpointManager;
  using States = std::map<std::string, StateProvider>;
  using Tensors = std::map<std::string, TensorProvider>;
  /// Restores these, which are to be added, from what waits.
  void take_waiting(const std::vector<Variable>& variables, const States& states = {},
                    const Tensors& tensors = {});
  internal::CheckpointFile values(std::int64_t step,
                                  internal::SavedAs form = internal::SavedAs::kWhole) const;
  /// What this worker has of variables that are cut over workers.
  std::map<std::string, TensorPart> own_parts() const;
  CheckpointInfo take(const internal::CheckpointFile& file, const std::string& source,
                      RestoreOptions options) const;
  /// Finds what to restore, or nothing, by means of a function that reads a path.
  using ReadPath = std::function<internal::CheckpointFile(const std::string& path)>;
  using Reader = std::function<std::optional<internal::CheckpointFile>(const ReadPath& read)>;
  /// What `find` gives here, or to the process that writes.
  std::optional<internal::CheckpointFile> file_of(const Reader& find) const;
  /// The same, of versions on a disk that all workers share what each wants. `own_path`: this
  /// worker's of a name in the folder. `sharded` as in CheckpointManagerOptions.
  using OwnPath = std::function<std::string(const std::string& name)>;
  std::optional<CheckpointInfo> take_what_is_read(const Reader& find, const OwnPath& own_path,
                                                  std::optional<bool> sharded,
                                                  RestoreOptions options) const;

  std::vector<Variable> variables_;
  CheckpointOptions options_;
  States states_;
  Tensors tensors_;
  Json about_ = Json::object();
  std::shared_ptr<const internal::CheckpointFile> waiting_;  // nullptr: nothing waits
};

/// Weights alone, under their names: what other programs read, too.
void save_weights(const std::string& path, const std::vector<Variable>& variables,
                  CheckpointOptions options = {},
                  const SourceLocation& where = SourceLocation::current());
/// How load_weights() reads what another program wrote.
struct LoadWeightsOptions {
  /// Tensors that belong to no variable are left alone; otherwise they are errors.
  bool ignore_unknown = false;
  /// Names in the file, and of the variables that they are: {"fc1.weight", "dense/kernel"}.
  std::map<std::string, std::string> rename = {};
  /// Variables whose names contain one of these lie as in PyTorch, outputs first: [out, in] becomes
  /// [in, out], [out, in, height, width] becomes [height, width, in, out], the [channels *
  /// multiplier, 1, height, width] of a depthwise kernel [height, width, channels, multiplier].
  std::vector<std::string> transpose = {};
  /// Otherwise variables that the file lacks keep their values, and a message lists them;
  /// ignore_unknown is then on.
  bool strict = true;
};

/// Loads variables from a file of weights, a whole checkpoint (its state is left alone), or a model
/// of Hugging Face: its folder, or its `model.safetensors.index.json`. Floating-point tensors are
/// cast to the types of the variables, which is logged once. All or nothing, as
/// Checkpoint::restore(). Throws kInvalidArgument listing what the file has and what is wanted,
/// also if no variable is in it.
CheckpointInfo load_weights(const std::string& path, const std::vector<Variable>& variables,
                            LoadWeightsOptions options = {});

}  // namespace tutti
