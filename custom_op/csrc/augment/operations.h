// The operations on a resized crop, as rows of a table: their numbers, parameters and limits.
#pragma once

#include <string>
#include <vector>

#include "types.h"

namespace custom_op {

// The order of PARAMETERS in augment_ops.py.
enum class OperationKind {
  kIdentity,
  kBrightness,
  kContrast,
  kSaturation,
  kSharpness,
  kHue,
  kGrayscale,
  kGaussianBlur,
  kPosterize,
  kSolarize,
  kSolarizeAdd,
  kAutocontrast,
  kEqualize,
  kInvert,
  kRotate,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
  kErase,
};

// Columns of the table: the number of the operation, then its parameters.
constexpr int64_t kOperationColumns = 8;

struct Operation {
  OperationKind kind;
  const float* parameters;  // kOperationColumns - 1 of them, in the table
};

// What is wrong with a row of the table for a crop of `size` x `size`; empty if nothing is.
std::string operation_problem(const float* row, int64_t size);

// The operations in `rows`, which have no problem, except those that change no pixel.
std::vector<Operation> read_operations(const float* rows, int64_t count);

}  // namespace custom_op
