// What survives the process: variables and named state in one safetensors file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/core/json.h"

namespace tutti {

/// Saves and restores something small that is no variable: the position of the input, a counter,
/// random keys.
struct StateProvider {
  std::function<Json()> save;
  std::function<void(const Json&)> restore;
};

/// What a file says about itself. A file of another program: step 0, no version, no fingerprint.
struct CheckpointInfo {
  std::int64_t step = 0;
  std::string tutti_version;
  std::string numerics;  // numerics_fingerprint() of the program that saved it
};

struct RestoreOptions {
  /// Tensors and state of the file that the program does not know are left alone; otherwise they
  /// are errors.
  bool ignore_unknown = false;
};

/// A set of variables and named state that are saved and restored together. tf.train.Checkpoint.
/// Make every variable (slots of optimizers too) before saving or restoring. All functions: outside
/// replicas, one thread.
///
/// Restoring changes everything or nothing: first all names, shapes and dtypes are compared, and
/// one error (kInvalidArgument) lists all that does not fit; if taking over still fails, what was
/// changed is set back. A warning names both fingerprints when training goes on with another one
/// (docs/determinism.md): it goes on well, but not bit for bit.
class Checkpoint {
 public:
  explicit Checkpoint(std::vector<Variable> variables = {});

  /// Variables that are already there stay once. Throws kAlreadyExists for another variable of the
  /// same name.
  void add(const std::vector<Variable>& variables);
  /// Throws kAlreadyExists for a name that is taken, kInvalidArgument for a missing function.
  void add_state(std::string name, StateProvider provider);

  const std::vector<Variable>& variables() const { return variables_; }

  /// Writes atomically; missing folders are made. `step` is kept beside the values.
  void save(const std::string& path, std::int64_t step = 0) const;
  CheckpointInfo restore(const std::string& path, RestoreOptions options = {}) const;

 private:
  std::vector<Variable> variables_;
  std::map<std::string, StateProvider> states_;
};

/// Weights alone, under their names: what other programs read, too.
void save_weights(const std::string& path, const std::vector<Variable>& variables);
/// From a file of weights or a whole checkpoint (its state is left alone; its other tensors, too,
/// with ignore_unknown). All or nothing, as Checkpoint::restore().
CheckpointInfo load_weights(const std::string& path, const std::vector<Variable>& variables,
                            RestoreOptions options = {});

}  // namespace tutti
